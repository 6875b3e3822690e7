"""FedRep on the server (Collins et al., 2021): FedAvg's average of the representation."""

from __future__ import annotations

from strategies.fedavg import FedAvg


class FedRep(FedAvg):
    """phi_{r+1} = sum_k p_k phi_k over the layers that travel."""
