"""FedRep's settings (Collins et al., 2021)."""

from collections.abc import Mapping
from typing import Any

from common.settings.base import setting
from common.settings.fedavg import FedAvgSettings
from common.settings.personal import AT_SITES


class FedRepSettings(FedAvgSettings):
    """Sites train their own last layer, then the layers that are everybody's (model.personal)."""

    head_epochs: int = setting(
        10,
        "passes that train a site's own part, ahead of the epochs of the shared one",
        symbol="tau",
        source="Collins et al.",
        ge=1,
        amount="epochs",
    )

    @classmethod
    def needs(cls) -> Mapping[str, Any]:
        """Return the personal layer, and sites that judge."""
        return {"model.personal": "head", **AT_SITES}
