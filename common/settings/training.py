"""Settings of local training, for the methods whose devices train a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from common.settings.base import Settings, setting

if TYPE_CHECKING:
    from common.settings.sections import PrivacySettings


class TrainingSettings(Settings):
    """Local training; batch, epochs and lr are in the search of the FedDM paper's baselines."""

    epochs: int = setting(
        10, "passes over the site's images a round", symbol="E", ge=1, amount="epochs"
    )
    lr: float = setting(0.01, "learning rate", symbol="eta", gt=0)
    batch: int = setting(256, "images a step", symbol="B", ge=1)
    momentum: float = setting(0.0, "momentum of SGD; Adam has its own", ge=0, lt=1)
    weight_decay: float = setting(0.0, "weight decay", ge=0)
    local_optimizer: Literal["sgd", "adam"] = setting(
        "sgd", "what takes the steps: torch's SGD, or its Adam with the usual betas"
    )
    lr_decay: float = setting(
        1.0, "factor of the learning rate, every lr_decay_every rounds", gt=0, le=1
    )
    lr_decay_every: int = setting(1, "rounds from one decay of the learning rate to the next", ge=1)
    clip_norm: float = setting(
        0.0, "longest gradient of the loss, longer ones are scaled down to it; 0: any", ge=0
    )

    gradient_noise: float = setting(
        0.0,
        "a study: standard deviation of normal noise on each number of a step's gradient; no privacy rests on it",
        source="Fedssyn's Eq. A.6",
        ge=0,
        later=True,
    )
    augment: Literal["none", "flip_crop"] = setting(
        "none",
        "what a step does to each image again; flip_crop: a crop of it within 4 reflected pixels, half flipped",
    )

    trains_alone: ClassVar[bool] = False
    """Whether a site's one training a round is all that it releases."""

    def private_steps(self, examples: int, held: float) -> tuple[float, int] | None:
        """Return the rate and number of a training's steps, as `common.learning.steps` plans them."""
        if not vars(type(self)).get("trains_alone"):  # what inherits it may release more
            return None
        pool = max(1, round(examples * (1 - held)))
        size = min(self.batch, pool)
        return size / pool, -(-self.epochs * pool // size)

    def unprotected(self, privacy: PrivacySettings) -> str:
        """Refuse to clip a noised gradient again, and to begin without the number of steps."""
        if self.clip_norm:
            return (
                f"privacy.clip bounds each example's gradient, and clip_norm={self.clip_norm:g} would scale the noisy "
                "sum of them: leave it at 0"
            )
        if privacy.counts == "one" and not privacy.examples:
            return (
                "the steps of a site follow its number of examples, which privacy.counts=one keeps private: set "
                "privacy.examples to the number that every site is taken to have, or privacy.counts=public where "
                "their own are no secret"
            )
        return ""

    def lr_in(self, server_round: int) -> float:
        """Return the learning rate of a round, which count from 1."""
        return self.lr * self.lr_decay ** ((server_round - 1) // self.lr_decay_every)
