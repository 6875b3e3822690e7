"""FedBN on the device (Li et al., 2021): normalising layers stay here."""

from __future__ import annotations

from client_app.fedavg import FedAvgClient


class FedBNClient(FedAvgClient):
    """Trains all layers from the shared ones and its own, and sends the shared ones (Algorithm 1)."""
