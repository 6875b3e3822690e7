"""Random masking's settings: a random part of each update travels (Konečný et al., 2016, section 3)."""

from typing import ClassVar, Literal

from common.settings.base import Disclosure, setting
from common.settings.fedavg import FedAvgSettings


class MaskingSettings(FedAvgSettings):
    """Sites train as under FedAvg and send the update at random places, drawn each round.

    The rate is the one at which FedSynth's paper compares; the training is FedAvg's.
    """

    trains_alone: ClassVar[bool] = True

    sends = Disclosure("part of an update", update=True)

    rate: float = setting(
        7.8,
        "the update's numbers over those that are sent, on average: each is sent with probability 1/rate",
        source="FedSynth's comparison",
        ge=1,
    )
    values: Literal["float32", "float16"] = setting("float32", "how a number of the update travels")
