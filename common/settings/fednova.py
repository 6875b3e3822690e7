"""FedNova's settings (Wang et al., 2020)."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from common.settings.base import setting
from common.settings.fedavg import FedAvgSettings


class FedNovaSettings(FedAvgSettings):
    """Sites train by SGD; the server averages updates normalised by the number of local steps."""

    trains_alone: ClassVar[bool] = True

    local_optimizer: Literal["sgd"] = setting(
        "sgd", "what takes the steps: SGD, whose steps the normalizer adds up"
    )
    mu: float = setting(
        0.0, "strength of a pull to the round's weights, as FedProx has it", symbol="mu", ge=0
    )

    @model_validator(mode="after")
    def _no_clip(self) -> Self:
        if self.clip_norm:
            raise ValueError(
                f"clip_norm={self.clip_norm:g} shortens some gradients and not others, which the normalizer of the "
                "site's steps does not know: set clip_norm=0, or choose another method"
            )
        return self
