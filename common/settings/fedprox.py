"""FedProx's settings (Li et al., 2020)."""

from typing import ClassVar

from common.settings.base import setting
from common.settings.fedavg import FedAvgSettings


class FedProxSettings(FedAvgSettings):
    """Sites train as under FedAvg, with a proximal term that pulls them to the round's weights."""

    trains_alone: ClassVar[bool] = True

    mu: float = setting(
        0.01, "strength of the pull to the round's weights", symbol="mu", source="Li et al.", ge=0
    )
