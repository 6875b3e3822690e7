"""The settings of servers that learn from the sites' small image sets, and of the server that learns alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import field_validator

from common.models.registry import MODELS
from common.settings.base import Disclosure, Settings, Switch, setting

if TYPE_CHECKING:
    from common.settings.sections import ModelSettings


ALLOWED = f"some of {', '.join(MODELS)}, joined by commas"


class GlobalModelsSettings(Settings):
    """What the server learns from its images, and how; the sites only deal with the run's model."""

    global_models: str = setting(
        "",
        "architectures that the server learns; the first gives the run's figures, others are evaluated too; empty: "
        "the run's model, which the sites have too",
        allowed=ALLOWED,
    )
    global_norm: Literal["as model", "instance", "group", "batch", "none"] = setting(
        "as model",
        "normalisation in the global models: model.norm's, or one of their own; they never travel, so that batch does "
        "not mix what sites have",
    )
    global_epochs: int = setting(
        1000, "the server's passes over the images a round", symbol="T_g", ge=0
    )
    global_batch: int = setting(256, "images a step of the server", ge=1)
    global_lr: float = setting(0.01, "learning rate of the server's SGD", ge=0)
    global_momentum: float = setting(0.9, "momentum of the server's SGD", ge=0, lt=1)

    @field_validator("global_models")
    @classmethod
    def _known_models(cls, value: str) -> str:
        names = value.split(",") if value else []
        if any(name not in MODELS for name in names) or len(set(names)) < len(names):
            raise ValueError("an unknown or repeated architecture")
        return value

    def model_names(self) -> tuple[str, ...]:
        """Return the names of the global models."""
        return tuple(self.global_models.split(",")) if self.global_models else ()

    def models(self, model: ModelSettings) -> Mapping[str, ModelSettings]:
        """Name the global models."""
        norm = model.norm if self.global_norm == "as model" else self.global_norm
        return {
            name: model.model_copy(update={"name": name, "norm": norm, "start": "", "sha256": ""})
            for name in self.model_names()
        }


class UnionTrainingSettings(Settings):
    """How the server trains on the union of the received sets, in addition to ``image_training``."""

    ipc: int = setting(
        10,
        "images a site sends per class it holds; of a class with fewer real ones, and started from those, as many",
        symbol="ipc",
        ge=1,
        amount="ipc",
    )
    image_weighting: Literal["uniform", "counts"] = setting(
        "uniform", "weight of a received image: one (Eq. 10), or the real images it represents"
    )
    keep: int = setting(1, "rounds whose sets the server trains on; 0: all so far", ge=0)

    trains_on_images: ClassVar[bool] = True


class SurrogateServerSettings(GlobalModelsSettings, UnionTrainingSettings):
    """The same, and models of other architectures that the server learns of the union in addition to the run's own."""


class RealSettings(SurrogateServerSettings):
    """Sites send real images in FedDM's protocol: what raw data teaches, and no privacy."""

    redraw: Switch = setting(False, "draw afresh every round instead of once for the run")

    def disclosure(self) -> Disclosure:
        """State what leaves a device."""
        return Disclosure(
            "real images",
            images=True,
            began_as="real examples",
            unchanged=True,
            labels=True,
            class_counts=self.image_weighting == "counts",
        )


class ServerSettings(Settings):
    """The server trains on its validation images, as image_training says, and nothing is requested of the sites."""

    comment = "This is not federated learning: the server trained on its own labelled images and asked no site."

    trains_on_images: ClassVar[bool] = True
    trains_on_validation: ClassVar[bool] = True

    def disclosure(self) -> Disclosure:
        """State what leaves a device."""
        return Disclosure("nothing", update=False)
