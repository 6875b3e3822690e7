"""What a site does under damped."""

from client_app.device import DeviceClient, phase
from client_app.local_training import train_locally
from common.wire.weights import Weights
from damped.settings import Settings


class Client(DeviceClient):
    """Trains, and goes a share of the way."""

    @phase("train")
    def train(self, w: Weights) -> Weights:
        """Return w + share (w_k - w)."""
        share = self.settings(Settings).share
        model, _ = train_locally(self, w)
        ended = Weights.of(model).tensors
        moved = {n: t + (share * (ended[n] - t)).to(t.dtype) for n, t in w.tensors.items()}
        return Weights(moved, w.codec)
