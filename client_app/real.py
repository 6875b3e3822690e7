"""REAL on the device: real images, sent as they are. A rival to measure against, not a way to protect data."""

from __future__ import annotations

from client_app.device import DeviceClient, phase
from common.settings.surrogate import RealSettings
from common.specs.images import sent_images
from common.wire.images import SyntheticImages
from common.wire.weights import Weights
from synth.starts import real_start


class RealClient(DeviceClient):
    """Draws ipc images of every class it holds, all of a smaller one.

    They are the same ones in every round, or others (``redraw``).
    """

    @phase("draw")
    def draw(self, w: Weights) -> SyntheticImages:
        """Return real images and their labels; ``w`` plays no part."""
        settings = self.settings(RealSettings)
        rng = self.generator("start", None if settings.redraw else 0)
        images, labels = real_start(self.samples.inputs, self.samples.labels, settings.ipc, rng)
        return sent_images(self.run, images, labels)
