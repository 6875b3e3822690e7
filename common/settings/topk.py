"""Top-k's settings: the largest numbers of each update travel (Aji and Heafield, 2017)."""

from typing import ClassVar, Literal

from common.settings.base import Disclosure, setting
from common.settings.fedavg import FedAvgSettings


class TopKSettings(FedAvgSettings):
    """Sites train as under FedAvg and send the update's largest numbers with their places.

    The places are paid for out of the same bytes: at one rate top-k costs what masking does and sends
    fewer numbers. The rate is the one at which FedSynth's paper compares; the training is FedAvg's.
    """

    trains_alone: ClassVar[bool] = True

    sends = Disclosure("part of an update", update=True)

    rate: float = setting(
        7.8,
        "bytes of the whole update over those that are sent, both in the dtype of topk.values; places count",
        source="FedSynth's comparison",
        ge=1,
    )
    values: Literal["float32", "float16"] = setting("float32", "how a number of the update travels")
