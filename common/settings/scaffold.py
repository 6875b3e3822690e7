"""SCAFFOLD's settings (Karimireddy et al., 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from common.settings.base import Disclosure, setting
from common.settings.fedavg import FedAvgSettings

if TYPE_CHECKING:
    from common.settings.sections import PrivacySettings


class ScaffoldSettings(FedAvgSettings):
    """Sites train by SGD along gradients corrected by control variates, which travel both ways."""

    trains_alone: ClassVar[bool] = True

    sends = Disclosure("weights and control variates", update=True)

    weighting: Literal["counts", "uniform"] = setting(
        "uniform", "a site's weight in the average: its number of images, or one"
    )
    local_optimizer: Literal["sgd"] = setting(
        "sgd", "what takes the steps: SGD, whose path control variates are read off"
    )
    option: Literal["I", "II"] = setting(
        "II",
        "a site's new control variate: I, its gradient at the round's weights; II, the mean gradient along its path",
    )

    def corrected(self, names: Sequence[str]) -> list[str]:
        """Return which of a model's parameters have control variates: all."""
        return list(names)

    def unprotected(self, privacy: PrivacySettings) -> str:
        """Refuse option I, whose gradient is one of single examples without clip and noise."""
        if self.option == "I":
            return (
                "option=I sends the gradient of the site's examples as it is: set option=II, which is computed of what "
                "the private steps lead to"
            )
        return super().unprotected(privacy)
