"""REAL's settings: FedDM's protocol with real images in place of synthetic ones."""

from common.settings.base import Disclosure, Switch, setting
from common.settings.surrogate import SurrogateServerSettings


class RealSettings(SurrogateServerSettings):
    """Sites send real images in FedDM's protocol: what raw data teaches, and no privacy."""

    redraw: Switch = setting(False, "draw afresh every round instead of once for the run")

    def disclosure(self) -> Disclosure:
        """State what leaves a device."""
        return Disclosure(
            "real images",
            images=True,
            began_as="real examples",
            unchanged=True,
            labels=True,
            class_counts=self.image_weighting == "counts",
        )
