"""FedDGM's settings (federated learning with a deep generative model, Jia et al., 2023), with the paper's values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Literal

from common.settings.base import Disclosure, Switch, setting
from common.settings.fedavg import FedAvgSettings
from common.settings.feddm import TRANSFORMS, Transforms
from common.settings.surrogate import ALLOWED, GlobalModelsSettings

if TYPE_CHECKING:
    from common.learning.run import Run
    from common.settings.sections import ModelSettings


_of_code = partial(setting, source="the released code")


class FedDGMSettings(GlobalModelsSettings, FedAvgSettings):
    """Sites train surrogates, the run's model; the server makes images of what each has learned, and learns from those.

    What is learned are the global models, of any architecture; the surrogate is evaluated in addition.
    """

    comment = (
        "The server distilled images from each site's weights; they show what the weights reveal."
    )

    epochs: int = setting(
        20, "passes over the site's images a round", symbol="T_l", ge=1, amount="epochs"
    )
    ipc: int = setting(
        10, "images of a class that the server distils of each site", symbol="ipc", ge=1
    )
    classes: Literal["all", "known"] = setting(
        "all", "of which classes images are distilled: of all, or of those that a site holds"
    )
    iterations: int = setting(100, "steps on the images of a site", symbol="T_d", ge=0)
    inner_epochs: int = setting(
        20, "passes of the student over a site's images in such a step", symbol="T_s", ge=1
    )
    inner_batch: int = setting(0, "images a step of the student; 0: all of a site's", ge=0)
    step_size: float = _of_code(0.01, "learning rate that the student begins with", gt=0)
    step_lr: float = _of_code(1e-5, "learning rate of the student's learning rate", ge=0)
    gradient: Literal["exact", "released", "unrolled"] = setting(
        "exact",
        "how the matching loss is differentiated: back through the student's steps; as the released code does, which "
        "leaves out how a step moves the later ones; or by one graph of all steps, with their memory",
    )
    dsa: Transforms = setting(
        "color_crop_flip_scale_rotate",
        "differentiable augmentation of the student's batches; empty: off",
        allowed=f"any of {', '.join(TRANSFORMS)} joined by _",
        source="the released code, which has cutout too",
    )
    generator: str = setting(
        "pixels",
        "what makes the images: pixels, nothing but themselves; digits, the small generator for 8x8 digits that comes "
        "with Nectar and has learned from MNIST; or what a function at the server returns for a run, such as "
        "StyleGAN-XL by examples/stylegan_xl.py",
        allowed="pixels, digits, or yours as package.module:function",
        pattern=r"^(pixels|digits|[^:\s]+:[^:\s]+)$",
    )
    space: int = setting(
        2,
        "the generator's space: n optimises the feature maps after layer n and the styles that follow; 0 the styles, "
        "and of StyleGAN-XL the features that its first layer begins with",
        symbol="n",
        source="5 in the paper, of a generator of some twenty layers",
        ge=0,
    )
    chunk: int = setting(
        0, "images that the generator makes at a time, which bounds its memory; 0: all", ge=0
    )
    latent_lr: float = _of_code(1.0, "learning rate of the styles, or of the pixels", gt=0)
    feature_lr: float = _of_code(1000.0, "learning rate of the feature maps", gt=0)
    latent_momentum: float = _of_code(0.5, "momentum of these", ge=0, lt=1)
    together: int = setting(
        1,
        "sites whose images are distilled side by side, with the same draws: several times as fast where networks and "
        "images are small, slower where they are large",
        ge=1,
    )
    warm: Switch = setting(
        False, "go on from a site's latents of the last round; the paper draws them again"
    )
    global_models: str = setting(
        "convnet",
        "architectures that the server learns; the first gives the run's figures, others are evaluated too",
        allowed=ALLOWED,
    )
    surrogate_epochs: int = setting(
        1000, "the server's passes for the surrogate; the paper does not say", ge=0
    )
    depths: str = setting(
        "",
        "model.depth of sites whose surrogates are deeper or shallower than the run's; the server learns one surrogate "
        "of each",
        allowed="site:depth, joined by commas",
        pattern=r"^([^:,\s]+:[1-8](,[^:,\s]+:[1-8])*)?$",
    )

    def depth_of(self, site: str) -> int:
        """Return the depth of a site's surrogate where it is its own; 0 for the run's."""
        own = dict(pair.rsplit(":", 1) for pair in self.depths.split(",") if pair)
        return int(own.get(site, 0))

    def models(self, model: ModelSettings) -> Mapping[str, ModelSettings]:
        """Name the global models, and the surrogates of other depths than the run's."""
        depths = {int(pair.rsplit(":", 1)[1]) for pair in self.depths.split(",") if pair}
        return dict(super().models(model)) | {
            surrogate(depth): model.model_copy(update={"depth": depth, "start": "", "sha256": ""})
            for depth in sorted(depths - {model.depth})
        }

    def own_code(self) -> tuple[str, ...]:
        """Name the function that makes the generator."""
        return (self.generator,) if ":" in self.generator else ()

    def disclosure(self) -> Disclosure:
        """State what leaves a device."""
        return Disclosure("weights", update=True, class_counts=self.classes == "known")


def surrogate(depth: int) -> str:
    """Return the name of the surrogate of another depth."""
    return f"depth-{depth}"


def surrogate_of(run: Run, site: str) -> str:
    """Return the name of the architecture that ``site`` trains; empty if it is the run's own."""
    name = surrogate(run.settings(FedDGMSettings).depth_of(site))
    return name if name in run.architectures else ""
