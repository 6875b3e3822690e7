"""FedPer's settings (Arivazhagan et al., 2019)."""

from collections.abc import Mapping
from typing import Any, ClassVar

from common.settings.fedavg import FedAvgSettings
from common.settings.personal import AT_SITES


class FedPerSettings(FedAvgSettings):
    """Sites train the model; its last layer is each site's own and never travels (model.personal)."""

    trains_alone: ClassVar[bool] = True

    @classmethod
    def needs(cls) -> Mapping[str, Any]:
        """Return the personal layer, and sites that judge."""
        return {"model.personal": "head", **AT_SITES}
