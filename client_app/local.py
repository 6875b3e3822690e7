"""Local training on the device, the lower bound: the site continues from its own model."""

from __future__ import annotations

from client_app.device import DeviceClient, phase
from client_app.local_training import trained_weights
from common.models import Classifier
from common.wire.weights import Weights


class LocalClient(DeviceClient):
    """Trains E epochs a round and never takes over what others learned."""

    @phase("train")
    def train(self, w: Weights) -> Weights:
        """Return the site's model, trained on from its own last one, in its first round from ``w``."""
        own = self.recall()
        ended, _ = trained_weights(self, w if own is None else Weights(own, w.codec))
        self.remember(ended.tensors)
        return ended

    def judged(self, w: Weights) -> Classifier:
        """Return the site's own model, which is what it judges."""
        own = self.recall()
        return self.model(w if own is None else Weights(own, w.codec))
