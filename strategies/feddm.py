"""FedDM on the server: send w_r, receive distilled sets, train on their union (Algorithm 1, server part)."""

from __future__ import annotations

from dataclasses import replace

from common.settings.feddm import FedDMSettings
from common.wire.images import SyntheticImages
from strategies.exchange.replies import Upload
from strategies.surrogate import SurrogateServer
from synth.distribution_matching import doubled


class FedDM(SurrogateServer):
    """The mathematics is the device's; what the server does with the sets is SurrogateServer's."""

    phase = "synthesize"

    @property
    def fewest(self) -> int:
        """ipc, which says nothing of how many a site has; a class that begins as real images may have fewer.

        So may one of the largest shares: softened labels may be wrong for some.
        """
        settings = self.run.config.settings
        real = not isinstance(settings, FedDMSettings) or settings.start == "real"
        return 1 if real or self.soft else self.settings.ipc

    @property
    def half(self) -> bool:
        """Whether ``side`` is half."""
        settings = self.run.config.settings
        return isinstance(settings, FedDMSettings) and settings.side == "half"

    def images_of(self, upload: Upload) -> SyntheticImages:
        """Return the images that a site sent, as large as real ones."""
        return self.full_size(upload.payload_as(SyntheticImages))

    def full_size(self, sent: SyntheticImages) -> SyntheticImages:
        """Blow up what was sent half as large."""
        return replace(sent, images=doubled(sent.images)) if self.half else sent
