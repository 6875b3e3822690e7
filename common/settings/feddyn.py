"""FedDyn's settings (Acar et al., 2021)."""

from typing import Literal

from common.settings.base import setting
from common.settings.fedavg import FedAvgSettings


class FedDynSettings(FedAvgSettings):
    """Sites minimise a loss whose linear and quadratic terms make their optima agree with the federation's."""

    weighting: Literal["counts", "uniform"] = setting(
        "uniform", "a site's weight in the average: its number of images, or one"
    )
    alpha: float = setting(
        0.01, "strength of the dynamic regulariser", symbol="alpha", source="Acar et al.", ge=0
    )
