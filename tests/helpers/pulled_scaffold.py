"""SCAFFOLD with FedProx's pull: two pieces of local training in one method, as somebody would write it."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from client_app.fedprox import pulled
from client_app.scaffold import ScaffoldClient
from common.learning.training import Local
from common.methods import Method
from common.settings.base import setting
from common.settings.fedavg import ScaffoldSettings
from common.wire.weights import Weights
from strategies.scaffold import Scaffold


class PulledSettings(ScaffoldSettings):
    """Sites step by gradients that are corrected, and held near the round's weights."""

    mu: float = setting(0.5, "strength of the pull", ge=0)


class PulledClient(ScaffoldClient):
    """Minimises F_k(w) + mu/2 ||w - w_r||^2 along SCAFFOLD's steps."""

    def local(self, w: Weights, drift: dict[str, Tensor]) -> Local:
        """Return SCAFFOLD's local training with FedProx's penalty."""
        pull = pulled(self, w, self.settings(PulledSettings).mu)
        return replace(super().local(w, drift), penalty=pull.penalty)


METHOD = Method("pulled", Scaffold, PulledClient, PulledSettings)
