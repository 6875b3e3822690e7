"""Random masking's settings: a random part of each update travels (Konečný et al., 2016, section 3)."""

from typing import Literal

from common.settings.base import setting
from common.settings.facts import Facts, Given
from common.settings.fedavg import FedAvgSettings


class MaskingSettings(FedAvgSettings):
    """Sites train as under FedAvg and send the update at random places, chosen anew each round.

    The rate is the one at which FedSynth's paper compares; the training is FedAvg's.
    """

    rate: float = setting(
        7.8,
        "the update's numbers over those that are sent, on average: each is sent with probability 1/rate",
        source="FedSynth's comparison",
        ge=1,
    )
    values: Literal["float32", "float16"] = setting("float32", "how a number of the update travels")


def facts(given: Given) -> Facts:
    """Return what a report says of random masking."""
    return Facts(
        "random masking",
        ("No training example left a device: a part of an update travelled.",),
        (
            "A random part of the update of every device was sent, value by value, and is a function of private data.",
        ),
        carries="a part of the update",
    )
