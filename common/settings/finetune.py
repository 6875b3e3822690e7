"""The settings of FedAvg with fine-tuning at the sites."""

from collections.abc import Mapping
from typing import Any, ClassVar

from common.settings.base import setting
from common.settings.fedavg import FedAvgSettings
from common.settings.personal import AT_SITES


class FinetuneSettings(FedAvgSettings):
    """Sites train as under FedAvg; each judges the shared model after it has trained it further on its own images."""

    trains_alone: ClassVar[bool] = True

    tuning_epochs: int = setting(
        0,
        "passes over a site's own images that tune the shared model for it; 0: as many as it trains a round",
        ge=0,
        amount="epochs",
    )

    @classmethod
    def needs(cls) -> Mapping[str, Any]:
        """Return sites that judge."""
        return {**AT_SITES}
