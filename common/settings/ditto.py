"""Ditto's settings (Li et al., 2021)."""

from collections.abc import Mapping
from typing import Any, ClassVar

from common.settings.base import setting
from common.settings.fedavg import FedAvgSettings
from common.settings.personal import AT_SITES


class DittoSettings(FedAvgSettings):
    """Sites train as under FedAvg, and a model of their own beside it that is pulled to the shared one."""

    trains_alone: ClassVar[bool] = True

    pull: float = setting(
        1.0, "strength of the pull of a site's own model to the shared one", symbol="lambda", ge=0
    )
    own_epochs: int = setting(
        0,
        "passes that train a site's own model a round; 0: as many as train the shared one",
        symbol="s",
        ge=0,
        amount="epochs",
    )

    @classmethod
    def needs(cls) -> Mapping[str, Any]:
        """Return sites that judge."""
        return {**AT_SITES}
