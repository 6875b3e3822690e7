"""DENSE on the device (Zhang et al., 2022): FedAvg's local training."""

from __future__ import annotations

from client_app.fedavg import FedAvgClient


class DENSEClient(FedAvgClient):
    """Trains E epochs and sends the weights it ends with; what is new is at the server."""
