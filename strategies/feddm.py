"""FedDM on the server: send w_r, receive distilled sets, train on their union (Algorithm 1, server part)."""

from __future__ import annotations

from common.settings.feddm import FedDMSettings
from strategies.surrogate import SurrogateServer


class FedDM(SurrogateServer):
    """The mathematics is the device's; what the server does with the sets is SurrogateServer's."""

    phase = "synthesize"

    @property
    def fewest(self) -> int:
        """ipc, which says nothing of how many a site has; a class that begins as real images may have fewer."""
        settings = self.run.config.settings
        real = not isinstance(settings, FedDMSettings) or settings.start == "real"
        return 1 if real else self.settings.ipc
