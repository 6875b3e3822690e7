"""Fedssyn's settings (synthetic images shuffled among the sites, under any algorithm), with the paper's values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from pydantic import model_validator

from common.settings.base import Disclosure, Switch, setting
from common.settings.fedavg import OWN_MODELS
from common.settings.generation import GenerationSettings

if TYPE_CHECKING:
    from common.settings.sections import PrivacySettings


NONE = "none"
"""The word for no source at all."""


@dataclass(frozen=True)
class ImageSource:
    """One source.

    Parameters
    ----------
    disclosure : Disclosure
        What leaves a site; where another method makes the images, that method's section says it.
    unprotected : callable
        Of the settings and the run's ``privacy``: why its noise would not cover the images; nothing if it does.
    by_method : bool
        Whether another method makes the images, ``distilled_by``.
    noise : bool
        Whether its training has noise where ``noise_multiplier`` says so.
    as_bytes : bool
        Whether they are a byte a value, as image files hold them, and not what ``wire.images`` says.
    """

    disclosure: Disclosure
    unprotected: Callable[[FedssynSettings, PrivacySettings], str]
    by_method: bool = False
    noise: bool = False
    as_bytes: bool = True


def _by_generator(settings: FedssynSettings, privacy: PrivacySettings) -> str:
    if not settings.noise_multiplier:
        return (
            f"source={settings.source} has each site make images by a generator that was trained without noise: set "
            "{section}.noise_multiplier above 0 with source=diffusion, or source=none"
        )
    if privacy.counts != "public":
        return (
            "images are made in the proportions of the site's classes: set privacy.counts=public where these are no "
            "secret, or source=none"
        )
    return ""


_DRAWN = Disclosure("synthetic images", images=True, began_as="noise", labels=True)

# A source is an entry here, a phase in `client_app.fedssyn` (how a site makes them) and one of its name in
# `strategies.image_sources` (how they are requested, and which are accepted); nothing else knows their names.
SOURCES: Mapping[str, ImageSource] = {
    "diffusion": ImageSource(_DRAWN, unprotected=_by_generator, noise=True),
    "vae": ImageSource(_DRAWN, unprotected=_by_generator),
    "distilled": ImageSource(
        Disclosure("nothing", update=True),
        unprotected=lambda settings, privacy: "",
        by_method=True,
        as_bytes=False,
    ),
    "real": ImageSource(
        Disclosure(
            "real images", images=True, began_as="real examples", unchanged=True, labels=True
        ),
        unprotected=lambda settings, privacy: (
            "source=real gives real images away: set source=diffusion with a noise_multiplier, or source=none"
        ),
    ),
}


class FedssynSettings(GenerationSettings):
    """Sites make images once; all are mixed, each site gets an equal share, and any method learns from both.

    What one round takes of ``rounds`` is the images' making, or several where it does not fit into one.
    """

    inner: str = setting(
        "fedavg",
        "the method that learns from a site's own images and its share of the others'",
        allowed="the name of another method",
    )
    source: str = setting(
        "diffusion",
        "where the images come from: a diffusion model or (for shapes as dSprites has them) a beta-VAE that each site "
        "trains; distilled, by another method (distilled_by); real, images of the sites' own (a study of shuffling, in "
        "simulation alone); none: nothing is added",
        allowed=f"one of {', '.join((*SOURCES, NONE))}",
        pattern=rf"^({'|'.join((*SOURCES, NONE))})$",
    )
    distilled_by: str = setting(
        "feddm",
        "source=distilled: the method whose sites make the images, by its own settings",
        allowed="the name of a method whose sites send images: feddm, fedaf or real",
    )
    shared: Switch = setting(
        True,
        "all sites' images are mixed and each site gets an equal share; off (a control): each keeps its own, which "
        "never leave it. inner=central: the server trains on all of them in one place (a bound)",
    )
    start_from_images: Switch = setting(
        False,
        "the first weights that the inner method begins with are trained by the server on all images that it received, "
        "as image_training says; off: they are the run's start",
    )
    size: int = setting(
        0,
        "diffusion and vae: images a site makes; 0: as many as the sites have together, divided by their number",
        symbol="n_tilde",
        ge=0,
        amount="images",
        open_at=0,
    )
    mixed: float = setting(
        0.1,
        "source=real: share of a site's images that it gives away and gets back as others'",
        symbol="p",
        gt=0,
        le=1,
    )
    rho: float = setting(
        0.75, "share of its images that a site's generator is trained on", symbol="rho", gt=0, le=1
    )
    diagnostics: Switch = setting(
        False,
        "a study: every reply brings the site's mean gradient at the round's weights, and the record has how far "
        "these differ (zeta^2), how far single images' are from them (sigma^2), and the synthetic images' (delta^2)",
    )
    scaled: Switch = setting(
        True,
        "an epoch draws as many images as the site itself has, not all of the larger set: as many steps as without",
        source="the released code",
    )
    tries: int = setting(
        5,
        "failed requests for images in a row to a site, by a refusal, a reply that cannot be used or less "
        "than a hundredth more of its training, before its share is missing",
        ge=1,
    )
    deadline: float = setting(
        86_400.0,
        "seconds of repeated requests to a site, or of waiting, while its images are missing; then its share is",
        gt=0,
        operational=True,
    )

    @model_validator(mode="after")
    def _images_where_they_are_wanted(self) -> Self:
        if self.inner in OWN_MODELS:
            raise ValueError(
                f"inner={self.inner} has models of the sites' own, which the server does not know: choose another"
            )
        if self.inner == "server":
            raise ValueError(
                "inner=server learns from no site's images: choose another, or method=server"
            )
        if self.start_from_images and not (self.made_by and self.shared):
            raise ValueError(
                "start_from_images=on trains at the server on the sites' images: choose a source, and leave shared=on"
            )
        if not self.made_by or self.shared:
            return self
        if self.central or self.made_by.disclosure.unchanged:
            raise ValueError(
                f"shared=off leaves the images where they are, which source={self.source} with inner={self.inner} has "
                "no use for: leave it out"
            )
        if self.made_by.by_method and not self.scaled:
            raise ValueError(
                f"shared=off with source={self.source} leaves unknown how many images a pass has: leave scaled=on"
            )
        return self

    @model_validator(mode="after")
    def _private_generator(self) -> Self:
        if self.noise_multiplier and self.made_by and not self.made_by.noise:
            raise ValueError(
                f"noise_multiplier={self.noise_multiplier:g} is for source=diffusion: source={self.source} has no "
                "private training of a generator"
            )
        return self

    @property
    def made_by(self) -> ImageSource | None:
        """The source of the images; None without images."""
        return SOURCES.get(self.source)

    @property
    def central(self) -> bool:
        """Whether the server trains on the sites' images in one place."""
        return self.made_by is not None and self.inner == "central"

    @property
    def trains_on_images(self) -> bool:
        """Whether the server does before the inner method begins."""
        return self.start_from_images

    def uses(self) -> tuple[str, ...]:
        """Name the inner method, and the one that makes the images."""
        by_method = self.made_by is not None and self.made_by.by_method
        return tuple(dict.fromkeys((self.inner, *([self.distilled_by] if by_method else []))))

    def remark(self) -> str:
        """Return what a generator may repeat, and what the mixing hides."""
        if self.made_by is None or not self.shared:
            return "No image was shared."
        sentences = []
        if self.noise_multiplier:
            sentences.append("The generators were trained with noise, which an epsilon covers.")
        elif not self.made_by.by_method and not self.made_by.disclosure.unchanged:
            sentences.append("A generator trained on few images can reproduce some of them.")
        if not self.central:
            sentences.append(
                "Other sites received the images mixed, without their origin; a party with the run's seed and all that "
                "was sent can undo the mixing."
            )
        return " ".join(sentences)

    def noises(self) -> tuple[float, ...]:
        """Return the generators'."""
        return (self.noise_multiplier,) if self.noise_multiplier and self.made_by else ()

    def unprotected(self, privacy: PrivacySettings) -> str:
        """Refuse images that no noise covers, labels by private counts, and gradients of single examples."""
        if self.made_by is not None and (why := self.made_by.unprotected(self, privacy)):
            return why
        if self.diagnostics:
            return "diagnostics=on sends mean gradients of the site's examples as they are: set diagnostics=off"
        return ""

    def disclosure(self) -> Disclosure:
        """State what leaves a device in addition to what the inner methods send, which they state themselves."""
        if self.made_by is None or not self.shared:
            return Disclosure("nothing", update=True)
        return self.made_by.disclosure
