"""FedDF on the device (Lin et al., 2020): FedAvg's local training."""

from __future__ import annotations

from client_app.fedavg import FedAvgClient


class FedDFClient(FedAvgClient):
    """Trains E epochs and sends the weights it ends with; what is new is at the server."""
