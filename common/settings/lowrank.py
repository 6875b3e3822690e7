"""The settings of low-rank updates: two thin factors of each matrix travel (PowerSGD, Vogels et al., 2019)."""

from typing import ClassVar

from common.settings.base import Disclosure, Switch, setting
from common.settings.fedavg import FedAvgSettings


class LowRankSettings(FedAvgSettings):
    """Sites train as under FedAvg and send each matrix of the update as two factors of a low rank.

    PowerSGD sums the factors of all workers; here each site sends its own, and the server averages their products. A
    tensor whose factors would not be smaller travels whole, as vectors do.
    """

    trains_alone: ClassVar[bool] = True

    sends = Disclosure("factors of an update", update=True)

    rank: int = setting(4, "columns of the two factors of a matrix", symbol="r", ge=1)
    feedback: Switch = setting(
        True,
        "a site adds to its update what its factors left out the last time that the server took them",
    )
