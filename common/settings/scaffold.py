"""SCAFFOLD's settings (Karimireddy et al., 2020)."""

from collections.abc import Sequence
from typing import Literal

from common.settings.base import setting
from common.settings.disclosure import Disclosure
from common.settings.fedavg import FedAvgSettings


class ScaffoldSettings(FedAvgSettings):
    """Sites train by SGD along gradients corrected by control variates, which travel both ways."""

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

    def disclosure(self) -> Disclosure:
        """State what leaves a device."""
        return Disclosure("weights and control variates", update=True)
