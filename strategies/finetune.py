"""FedAvg on the server; its sites fine-tune what they judge."""

from __future__ import annotations

from strategies.fedavg import FedAvg


class Finetune(FedAvg):
    """w_{r+1} = sum_k p_k w_k."""
