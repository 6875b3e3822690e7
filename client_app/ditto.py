"""Ditto on the device (Li et al., 2021, Algorithm 1): a personal model in addition to the shared one."""

from __future__ import annotations

from client_app.device import DeviceClient, phase
from client_app.local_training import train_aside, trained_weights
from common.learning.training import Local
from common.models import Classifier
from common.settings.fedavg import DittoSettings
from common.wire.weights import Weights


class DittoClient(DeviceClient):
    """Sends w_k as FedAvg's site does, and keeps v_k, which minimises F_k(v) + lambda/2 ||v - w_r||^2 (Eq. 1)."""

    @phase("train")
    def train(self, w: Weights) -> Weights:
        """Return w_k; v_k, which never leaves the site, continues from its last value."""
        ended, _ = trained_weights(self, w)
        settings, own = self.settings(DittoSettings), self.judged(w)
        longer = settings.model_copy(update={"epochs": settings.own_epochs or settings.epochs})
        pull = Local(mu=settings.pull, centre=dict(self.model(w).named_parameters()))
        purpose = "local-training of the own model"
        train_aside(self, own, longer, purpose, local=pull)
        self.remember(Weights.of(own).tensors)
        return ended

    def judged(self, w: Weights) -> Classifier:
        """Return v_k; before there is one, the shared model."""
        own = self.recall()
        return self.model(w if own is None else Weights(own, w.codec))
