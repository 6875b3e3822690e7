"""Ditto on the device (Li et al., 2021, Algorithm 1): a model of its own beside the shared one."""

from __future__ import annotations

from client_app.device import DeviceClient, phase
from client_app.local_training import pulled, train_locally
from common.learning.training import train
from common.models import Classifier
from common.settings.ditto import DittoSettings
from common.wire.weights import Weights


class DittoClient(DeviceClient):
    """Sends w_k as FedAvg's site does, and keeps v_k, which minimises F_k(v) + lambda/2 ||v - w_r||^2 (Eq. 1)."""

    @phase("train")
    def train(self, w: Weights) -> Weights:
        """Return w_k; v_k, which no message holds, goes on from where it was."""
        shared, _ = train_locally(self, w)
        ended = Weights.of(shared, w.codec)
        settings, own = self.settings(DittoSettings), self.judged(w)
        train(
            own,
            self.samples,
            settings.model_copy(update={"epochs": settings.own_epochs}),
            self.run.task,
            self.generator("local-training of the own model"),
            local=pulled(self, w, settings.pull),
            server_round=self.server_round,
            precision=self.run.config.compute.precision,
            examples=self.examples_an_epoch,
            before_step=self.deadline.check,
        )
        self.remember(Weights.of(own).tensors)
        return ended

    def judged(self, w: Weights) -> Classifier:
        """Return v_k; before there is one, the shared model."""
        own = self.recall()
        return self.model(w if own is None else Weights(own, w.codec))
