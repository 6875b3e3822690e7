"""FedProx on the device (Li et al., 2020): local training that stays near the round's weights."""

from __future__ import annotations

from client_app.fedavg import FedAvgClient
from common.learning.training import Local
from common.settings.fedavg import FedProxSettings
from common.wire.weights import Weights


class FedProxClient(FedAvgClient):
    """Minimises F_k(w) + mu/2 ||w - w_r||^2 (Eq. 2)."""

    def local(self, given: Weights) -> Local:
        """Return training that is pulled to its start."""
        return Local(mu=self.settings(FedProxSettings).mu)
