"""FedBN on the server (Li et al., 2021): FedAvg's average of all but normalising layers."""

from __future__ import annotations

from strategies.fedavg import FedAvg


class FedBN(FedAvg):
    """w_{r+1} = sum_k p_k w_k over the layers that travel."""
