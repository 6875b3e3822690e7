"""FedDyn's settings (Acar et al., 2021)."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from common.settings.base import setting
from common.settings.fedavg import FedAvgSettings


class FedDynSettings(FedAvgSettings):
    """Sites train with dynamic regularisation, so that their optima and the federation's agree."""

    trains_alone: ClassVar[bool] = True

    weighting: Literal["counts", "uniform"] = setting(
        "uniform", "a site's weight in the average: its number of images, or one"
    )
    alpha: float = setting(
        0.01, "strength of the dynamic regulariser", symbol="alpha", source="Acar et al.", ge=0
    )

    @model_validator(mode="after")
    def _the_servers_step_is_its_own(self) -> Self:
        if (self.server_optimizer, self.server_lr, self.server_momentum) != ("sgd", 1.0, 0.0):
            raise ValueError(
                "server_optimizer, server_lr and server_momentum would move the weights and not the server's h, which "
                "then part: set server_optimizer=sgd, server_lr=1 and server_momentum=0"
            )
        return self
