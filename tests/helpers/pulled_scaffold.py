"""SCAFFOLD with FedProx's pull: two pieces of local training in one method, as somebody would write it."""

from __future__ import annotations

from dataclasses import replace

from client_app.scaffold import ScaffoldClient
from common.learning.training import Local
from common.methods import Method
from common.settings.base import setting
from common.settings.fedavg import ScaffoldSettings
from common.wire.bundle import Bundle
from strategies.scaffold import Scaffold


class PulledSettings(ScaffoldSettings):
    """Sites step by gradients that are corrected, and held near the round's weights."""

    mu: float = setting(0.5, "strength of the pull", ge=0)


class PulledClient(ScaffoldClient):
    """Minimises F_k(w) + mu/2 ||w - w_r||^2 along SCAFFOLD's steps."""

    def local(self, given: Bundle) -> Local:
        """Return SCAFFOLD's local training with FedProx's pull."""
        return replace(super().local(given), mu=self.settings(PulledSettings).mu)


METHOD = Method("pulled", Scaffold, PulledClient, PulledSettings)
