"""The settings of local training without exchange, the lower bound."""

from typing import ClassVar

from common.settings.fedavg import FedAvgSettings


class LocalSettings(FedAvgSettings):
    """Every site trains a model of its own; the server judges them all and averages nothing."""

    trains_alone: ClassVar[bool] = True
