"""FedPer on the server (Arivazhagan et al., 2019): FedAvg's average of the shared layers."""

from __future__ import annotations

from strategies.fedavg import FedAvg


class FedPer(FedAvg):
    """w_{r+1} = sum_k p_k w_k over the layers that travel."""
