"""REAL's settings: FedDM's protocol with real images in place of synthetic ones."""

from common.settings.base import Switch, setting
from common.settings.facts import Facts, Given
from common.settings.surrogate import SurrogateServerSettings, labels_sent


class RealSettings(SurrogateServerSettings):
    """Sites send real images in FedDM's protocol: what raw data teaches, and no privacy."""

    redraw: Switch = setting(False, "draw afresh every round instead of once for the run")


def facts(given: Given) -> Facts:
    """Return what a report says of REAL."""
    return Facts(
        "REAL",
        (),
        (
            "Real images were sent, as they are: the method gives data away, to be measured.",
            *labels_sent(given),
        ),
        pictures="real images of the sites",
    )
