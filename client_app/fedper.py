"""FedPer on the device (Arivazhagan et al., 2019): the last layer stays here."""

from __future__ import annotations

from client_app.fedavg import FedAvgClient


class FedPerClient(FedAvgClient):
    """Trains all layers from the shared ones and its own, and sends the shared ones (Algorithm 1)."""
