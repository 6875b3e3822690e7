"""FedBN's settings (Li et al., 2021)."""

from collections.abc import Mapping
from typing import Any, ClassVar

from common.settings.fedavg import FedAvgSettings
from common.settings.personal import AT_SITES


class FedBNSettings(FedAvgSettings):
    """Sites train the model; its normalising layers are each site's own and never travel (model.personal)."""

    trains_alone: ClassVar[bool] = True

    @classmethod
    def needs(cls) -> Mapping[str, Any]:
        """Return the personal layers of a model with batch norm, and sites that judge."""
        return {"model.personal": "norm", "model.norm": "batch", **AT_SITES}
