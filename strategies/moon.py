"""MOON on the server (Li et al., 2021): FedAvg's average."""

from __future__ import annotations

from strategies.fedavg import FedAvg


class MOON(FedAvg):
    """w_{r+1} = sum_k p_k w_k; what is new is at the devices."""
