"""FedNova on the device (Wang et al., 2020): local training, and how far its steps could take it."""

from __future__ import annotations

from client_app.device import DeviceClient, phase
from client_app.local_training import trained_weights
from common.learning.training import Local
from common.settings.fedavg import FedNovaSettings
from common.specs.averaging import NORMALIZER, normalizer
from common.wire.weights import Weights


class FedNovaClient(DeviceClient):
    """Sends w_k and ||a_k||_1, of which the server makes d_k = (w_r - w_k) / (eta ||a_k||_1)."""

    @phase("train")
    def train(self, w: Weights) -> Weights:
        """Return w_k, trained from ``w`` on the site's images."""
        settings = self.settings(FedNovaSettings)
        ended, trained = trained_weights(self, w, self.local(w))
        a = normalizer(trained.steps, settings.momentum, trained.lr * settings.mu)
        self.tell(**{NORMALIZER: a})
        return ended

    def local(self, given: Weights) -> Local:
        """Return training that is pulled to its start."""
        return Local(mu=self.settings(FedNovaSettings).mu)
