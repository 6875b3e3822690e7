"""A private method of somebody's own: FedAvg's round, with normal noise on what leaves, and figures that must not."""

from __future__ import annotations

import torch
from torch import Tensor

from client_app.device import DeviceClient, phase
from common.methods import Method
from common.privacy.events import Event
from common.settings.base import Disclosure, Switch, setting
from common.settings.fedavg import FedAvgSettings
from common.wire.weights import Weights
from strategies.fedavg import FedAvg

#: what a round costs: epsilon 0.52 by itself at delta 1e-5
MULTIPLIER = 8.0


class NoisySettings(FedAvgSettings):
    """Sites send the weights that they got, with noise."""

    multiplier: float = setting(MULTIPLIER, "noise over sensitivity", ge=0)
    forgets: Switch = setting(False, "whether the noise is drawn and not charged")

    def disclosure(self) -> Disclosure:
        """State that all of it is private."""
        return Disclosure("weights", update=True, differentially_private=True)


class NoisyClient(DeviceClient):
    """Charges, draws, and reports what it should not and what it may."""

    @phase("train")
    def train(self, w: Weights) -> Weights:
        """Return ``w`` with noise on it."""
        settings = self.settings(NoisySettings)
        if not settings.forgets:
            self.draws.charge(Event("noisy", settings.multiplier))
        noised = {
            name: tensor + 0.01 * self._noise(name, tensor).to(tensor.dtype)
            for name, tensor in w.tensors.items()
        }
        self.report(train_loss=float(torch.rand(())), length=3.0)
        self.tell(draws=len(noised))
        return Weights(noised, w.codec)

    def _noise(self, name: str, tensor: Tensor) -> Tensor:
        return self.draws.gaussian(name, 1.0, 1.0).released(torch.zeros_like(tensor).long())


METHOD = Method("noisy", FedAvg, NoisyClient, NoisySettings)
