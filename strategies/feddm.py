"""FedDM on the server: send w_r, receive distilled sets, train on their union (Algorithm 1, server part)."""

from __future__ import annotations

from common.settings.feddm import FedDMSettings
from strategies.surrogate import SurrogateServer


class FedDM(SurrogateServer):
    """The mathematics is the device's; what the server does with the sets is SurrogateServer's."""

    phase = "synthesize"

    @property
    def fewest(self) -> int:
        """From noise ipc, which says nothing of how many a site has; a class begun as real images may have fewer."""
        settings = self.run.config.settings
        noise = isinstance(settings, FedDMSettings) and settings.start == "noise"
        return self.settings.ipc if noise else 1
