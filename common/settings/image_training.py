"""How the server trains on the sites' images: FedDM's and REAL's, whatever else these methods set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import model_validator

from common.settings.section import Section, setting


class ImageTrainingSettings(Section):
    """The server's training on the images it received, for every method that learns from such (feddm, real)."""

    steps: int = setting(0, "steps a round, however many images there are; 0: by epochs", ge=0)
    epochs: int = setting(
        500,
        "passes a round over the images it trains on; steps takes their place, and 0 of both trains nothing",
        source="FedDM",
        ge=0,
    )
    batch: int = setting(256, "images a step", source="FedDM", ge=1)
    lr: float = setting(0.01, "learning rate of SGD", symbol="eta_s", source="FedDM", gt=0)
    schedule: Literal["constant", "steps", "cosine"] = setting(
        "constant",
        "how lr falls within a round; steps: to 0.3 of it after 6 tenths of the steps, to 0.09 after 8; cosine: along "
        "half a cosine to nothing",
    )
    momentum: float = setting(
        0.9, "momentum of SGD", source="third-party releases of FedDM", ge=0, lt=1
    )
    weight_decay: float = setting(0.0, "weight decay of SGD", ge=0)
    augment: Literal["none", "flip_crop", "dsa"] = setting(
        "none",
        "what a step does to its images; flip_crop: a crop of each within 4 reflected pixels, half flipped; dsa: one "
        "of the six transforms of differentiable siamese augmentation, the same for all images of a step",
    )
    average: float = setting(
        0.0,
        "share of the steps, the last ones, whose weights are averaged; running statistics are the last step's; 0: the "
        "last step's weights",
        ge=0,
        le=1,
    )
    ball: float = setting(
        5.0,
        "radius of the ball around the round's weights into which each step is projected; 0: no ball",
        symbol="rho",
        source="FedDM, whose matching draws from a ball of the same radius (feddm.rho)",
        ge=0,
    )

    def steps_on(self, images: int) -> int:
        """Return how many steps a round takes on so many images."""
        return self.steps or self.epochs * -(-images // self.batch)

    @model_validator(mode="before")
    @classmethod
    def _steps_without_passes(cls, given: Any) -> Any:
        """Let steps stand alone, so that a resolved configuration says one length."""
        if isinstance(given, Mapping) and given.get("steps") and "epochs" not in given:
            return {**given, "epochs": 0}
        return given

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.steps and self.epochs:
            raise ValueError(
                f"steps={self.steps} and epochs={self.epochs} each say how long the server trains: give one of them"
            )
        return self
