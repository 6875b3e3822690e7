"""FedGEN's settings (Zhu, Hong and Zhou, 2021), with the values of the released code for MNIST."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from common.settings.base import Disclosure, setting
from common.settings.fedavg import FedAvgSettings

if TYPE_CHECKING:
    from common.settings.sections import PrivacySettings

_of_code = partial(setting, source="the released code")


class FedGENSettings(FedAvgSettings):
    """Sites train with latents drawn by a generator that the server trains on their classifiers."""

    comment = "Every site received a generator of latents that the server learned from the weights and counts."

    sends = Disclosure("weights", class_counts=True, update=True)

    hidden: int = _of_code(256, "hidden units of the generator", ge=1, le=65_536)
    noise: int = _of_code(32, "dimensions of the generator's noise", ge=1, le=65_536)
    generator_lr: float = _of_code(3e-4, "learning rate of the generator's Adam", gt=0)
    generator_weight_decay: float = _of_code(1e-2, "L2 penalty of the generator's Adam", ge=0)
    generator_lr_decay: float = _of_code(
        0.98, "factor of the generator's learning rate after each round", gt=0, le=1
    )
    generator_steps: int = _of_code(50, "steps of the generator a round", ge=1)
    generator_batch: int = _of_code(128, "latents in each of these steps", ge=2)
    diversity: float = _of_code(1.0, "weight of the generator's diversity", symbol="eta", ge=0)
    strength: float = _of_code(
        10.0,
        "weight of a site's two terms on latents, before it decays; 0: FedAvg",
        symbol="alpha, beta",
        ge=0,
    )
    strength_decay: float = _of_code(
        0.98, "factor of the strength for each earlier round", gt=0, le=1
    )
    epochs_with_latents: int = _of_code(
        20, "first epochs of a site's round that have latents", ge=1
    )
    drawn: int = setting(
        0,
        "latents of any class in a site's step; 0: as many as its batch",
        symbol="B_g",
        ge=0,
        le=100_000,
    )

    def unprotected(self, privacy: PrivacySettings) -> str:
        """Refuse latents that belong to no example: a step clips each with the example that it was drawn for."""
        if self.drawn:
            return (
                f"drawn={self.drawn} draws latents jointly for a batch, and a private step treats each example by "
                "itself: set drawn=0, one latent an example"
            )
        return super().unprotected(privacy)
