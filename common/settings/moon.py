"""MOON's settings (Li et al., 2021)."""

from typing import ClassVar

from common.settings.base import setting
from common.settings.fedavg import FedAvgSettings


class MOONSettings(FedAvgSettings):
    """Sites train with a model-contrastive loss; ``model.projection`` gives them the paper's projection head."""

    trains_alone: ClassVar[bool] = True

    mu: float = setting(
        1.0,
        "strength of the contrast",
        symbol="mu",
        source="Li et al.: 5, 1, 10 and 0.1 by data set",
        ge=0,
    )
    temperature: float = setting(0.5, "temperature of the contrast", symbol="tau", gt=0)
    pool: int = setting(
        1, "earlier models of the site that are contrasted with", source="the published code", ge=1
    )
