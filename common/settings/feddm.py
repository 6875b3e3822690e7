"""The settings of FedDM (federated distribution matching), with the paper's values, and of FedAF upon it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator

from common.settings.base import Disclosure, Noise, Origin, Switch, of_noise, setting
from common.settings.surrogate import SurrogateServerSettings

if TYPE_CHECKING:
    from common.settings.sections import PrivacySettings


TRANSFORMS = ("color", "crop", "cutout", "flip", "scale", "rotate")
"""The transforms of differentiable siamese augmentation (Zhao & Bilen, 2021)."""


def _known(value: str) -> str:
    """Return the text that names transforms; ValueError where one is unknown or is there twice."""
    names = value.split("_") if value else []
    if any(name not in TRANSFORMS for name in names) or len(set(names)) < len(names):
        raise ValueError("unknown or repeated transform")
    return value


Transforms = Annotated[str, AfterValidator(_known)]
"""Names of `TRANSFORMS`, joined by ``_``; empty for none."""


class FedDMSettings(SurrogateServerSettings):
    """Sites distil their images into a few synthetic ones; the server learns from those.

    ``start`` and ``warm`` are safe by default and not the paper's: real, off. Those are in the files of the public
    data sets in ``conf/dataset``, so that no row of a paper's table carries them to anybody's own pictures.
    """

    rho: float = setting(
        5.0,
        "radius of the ball around the round's weights from which the matching draws; image_training.ball holds the "
        "server",
        symbol="rho",
        gt=0,
    )
    iterations: int = setting(
        1000, "matching steps a site takes a round", symbol="T", ge=0, amount="iterations"
    )
    image_lr: float = setting(1.0, "learning rate of the pixels", symbol="eta_c", gt=0)
    image_momentum: float = setting(
        0.5, "momentum of the pixels' SGD", source="third-party releases of FedDM", ge=0, lt=1
    )
    real_batch: int = setting(256, "real images of a class a matching step", symbol="|B_c|", ge=1)
    syn_batch: int = setting(
        0, "synthetic images of a class a matching step; 0: all ipc of them", ge=0
    )
    start: str = setting(
        "noise",
        "what the images start from: noise, plain or smooth (of low frequencies); mean, that of the class (of at least "
        "10 images) with smooth noise upon it; mix:K, means of K of the site's own real images, of which they show "
        "something; or (the paper) these real images, which they go on to look like",
        allowed="noise, smooth, mean, mix:K with K from 2 to 64, or real",
        source="Nectar, safe on any images; the paper's is in the public data sets' files",
        pattern=r"^(noise|smooth|mean|mix:([2-9]|[1-5]\d|6[0-4])|real)$",
    )
    small_class: Literal["noise", "leave_out"] = setting(
        "noise",
        "start=mix:K: what a class with fewer than K images does: it starts from smooth noise, or it is not sent",
    )
    warm: Switch = setting(
        True,
        "go on from the site's own last images instead of starting afresh every round (the paper)",
        source="Nectar, what a start from noise needs; the paper's is in the public data sets' files",
    )
    side: Literal["full", "half"] = setting(
        "full",
        "how large the images are that are distilled and sent; half: half as high and wide, matched to the site's "
        "images averaged 2 x 2, and blown up bilinearly for networks, at the server and where they are compared",
        source="the paper's are of full size",
    )
    dsa: Transforms = setting(
        "",
        "differentiable augmentation, one draw for real and synthetic images; empty: off",
        allowed=f"any of {', '.join(TRANSFORMS)} joined by _",
        source="third-party releases of FedDM: off in one, all six in the other",
    )
    real_precision: Literal["float32", "bfloat16"] = setting(
        "float32",
        "arithmetic of the real batch's forward pass, which carries no gradient; bfloat16 is the slower one on a CPU "
        "without AMX (docs/speed.md)",
    )

    mechanism: Literal["none", "gradient", "feature"] = setting(
        "none",
        "how an example's part in the matching is bounded and given noise, by privacy.clip and "
        "privacy.noise_multiplier: the gradients of the images (the paper's intent), or the features that are matched, "
        "in fewer dimensions; none: not at all",
        source="the paper clips the averaged gradient, which bounds no example's part",
    )
    counts_noise: Noise = of_noise(
        "under privacy: standard deviation of the noise on a class's number of examples, of which the rate of its "
        "samples is made; 0: the true one, which privacy.counts=public says is no secret",
    )

    @property
    def mix_of(self) -> int:
        """K of ``start=mix:K``; 0 for another start."""
        return int(self.start.removeprefix("mix:")) if self.start.startswith("mix:") else 0

    def disclosure(self) -> Disclosure:
        """State what leaves a device; real images that no step has changed are sent as they are."""
        origins: dict[str, Origin] = {
            "noise": "noise",
            "smooth": "noise",
            "mean": "class means",
        }
        return Disclosure(
            "synthetic images",
            images=True,
            began_as=origins.get(self.start, "real examples"),
            unchanged=self.start == "real" and self.iterations == 0,
            labels=True,
            class_counts=self.image_weighting == "counts",
            differentially_private=self.mechanism != "none",
        )

    def remark(self) -> str:
        """Return what a mechanism bounds, what mixtures show, and what leaving out a small class reveals."""
        if self.mechanism != "none":
            return (
                "Each real image gave the sums that the images are made of no more than the clip."
            )
        if not self.mix_of:
            return self.comment
        shows = f"Each began as the mean of {self.mix_of} real images and shows what these have in common."
        left_out = f"Classes with fewer images than {self.mix_of} were left out: a label says that there are as many."
        return f"{shows} {left_out}" if self.small_class == "leave_out" else shows

    def noises(self) -> tuple[float, ...]:
        """Return the noise multiplier of the classes' counts."""
        return (self.counts_noise,) if self.counts_noise else ()

    def private_steps(self, examples: int, held: float) -> tuple[float, int] | None:
        """Return a round's steps, each of all examples: a site's own rate follows its classes, and is no higher."""
        if type(self) is not FedDMSettings or self.mechanism == "none" or self.counts_noise:
            return None  # what inherits it may release more
        return 1.0, self.iterations

    def unprotected(self, privacy: PrivacySettings) -> str:
        """Refuse images that hold real ones, or matching without a mechanism, or by counts that are private."""
        reasons = []
        if self.mechanism == "none":
            reasons.append(
                "its images are matched to real ones without noise: set {section}.mechanism=feature or "
                "{section}.mechanism=gradient"
            )
        if self.start not in ("noise", "smooth"):
            source = "means of real ones" if self.start != "real" else "real ones"
            reasons.append(
                f"its images begin as {source} ({{section}}.start={self.start}): set {{section}}.start=noise"
            )
        if privacy.counts != "public" and not self.counts_noise:
            reasons.append(
                "how often an example is drawn follows its class's number of examples, which privacy.counts=one keeps "
                "private: set {section}.counts_noise above 0, such as 10, or privacy.counts=public where these are no "
                "secret"
            )
        return "; and ".join(reasons) or super().unprotected(privacy)


_of_ours = partial(setting, source="not in what we have of the paper: a value of ours")


# Wang et al., CVPR 2024
class FedAFSettings(FedDMSettings):
    """FedDM whose images also match all sites' mean logits; the server learns from these as soft labels too.

    Start, steps and images are FedDM's, and files' values of ``feddm`` apply too.
    """

    comment = "Each site also sent the mean logits of two models by class: of a class with one image, that image's own."

    rho: float = setting(5.0, "FedDM's; gamma takes its place", symbol="rho", gt=0)
    mechanism: Literal["none"] = setting("none", "FedDM's; nothing has noise")
    counts_noise: Noise = setting(0.0, "FedDM's; nothing has noise", allowed="0")
    gamma: float = _of_ours(
        0.9,
        "share of the round's weights in those that a step matches at; the rest is a network as it begins, another "
        "one each time",
        symbol="gamma",
        ge=0,
        le=1,
    )
    local_strength: float = _of_ours(
        0.01,
        "weight of the distance between an image's logits and all sites' mean ones of its class",
        symbol="lambda_loc",
        ge=0,
    )
    global_strength: float = _of_ours(
        0.1,
        "weight at the server of the divergence between the model's softened outputs and the sites' soft labels",
        symbol="lambda_glob",
        ge=0,
    )
    temperature: float = _of_ours(
        2.0, "what logits are divided by for soft labels", symbol="tau", gt=0
    )
    directions: int = _of_ours(
        32, "directions along which a step takes the sliced Wasserstein distance", ge=1, le=10_000
    )
    local_epochs: int = _of_ours(
        10,
        "passes over its images in which a site trains the model of its soft labels; 0: the round's own",
        ge=0,
        amount="epochs",
    )
    local_lr: float = _of_ours(0.01, "learning rate of that training", gt=0)
    local_batch: int = _of_ours(64, "images a step of it", ge=1)
