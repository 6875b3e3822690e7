"""Ditto on the server (Li et al., 2021): FedAvg's average; of the sites' own models it sees nothing."""

from __future__ import annotations

from strategies.fedavg import FedAvg


class Ditto(FedAvg):
    """w_{r+1} = sum_k p_k w_k."""

    judged_from_memory = True  # each site its own model
