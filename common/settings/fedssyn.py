"""Fedssyn's settings (synthetic images shuffled among the sites, under any algorithm), with the paper's values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from common.settings.base import Switch, setting
from common.settings.disclosure import Disclosure
from common.settings.generation import GenerationSettings

if TYPE_CHECKING:
    from common.settings.sections import PrivacySettings


class FedssynSettings(GenerationSettings):
    """Sites make images once; all are mixed, each site gets an equal share, and any method learns from both.

    What one round takes of ``rounds`` is the images' making, or several where it does not fit into one.
    """

    inner: str = setting(
        "fedavg",
        "the method that learns from a site's own images and its share of the others'",
        allowed="the name of another method",
    )
    images: Literal["shuffled", "local", "none", "real-shuffled", "central"] = setting(
        "shuffled",
        "what is added to a site's own images: a share of everybody's synthetic ones, its own synthetic ones, nothing, "
        "or (a study of shuffling, in simulation alone) a share of everybody's real ones; central: nothing, "
        "and the server trains on all synthetic ones in one place, by inner=central's settings (a bound)",
    )
    size: int = setting(
        0,
        "synthetic images a site makes; 0: as many as the sites have together, divided by their number",
        symbol="n_tilde",
        ge=0,
        amount="images",
        open_at=0,
    )
    mixed: float = setting(
        0.1,
        "real-shuffled: share of a site's images that it gives away and gets back as others'",
        symbol="p",
        gt=0,
        le=1,
    )
    rho: float = setting(
        0.75, "share of its images that a site's generator is trained on", symbol="rho", gt=0, le=1
    )
    diagnostics: Switch = setting(
        False,
        "a study: every reply brings the site's mean gradient at the round's weights, and the record says how far "
        "these lie apart (zeta^2), how far single images' lie from them (sigma^2), and the synthetic images' (delta^2)",
    )
    scaled: Switch = setting(
        True,
        "an epoch draws as many images as the site has of its own, not all of the larger set: as many steps as without",
        source="the released code",
    )
    tries: int = setting(
        5,
        "times in a row that a site is asked for images in vain, by a refusal, a reply that cannot be used or less "
        "than a hundredth more of its training, before its share is missing",
        ge=1,
    )
    deadline: float = setting(
        86_400.0,
        "seconds in which a site is asked again, or waited for, where its images are missing; then its share is",
        gt=0,
        operational=True,
    )

    @model_validator(mode="after")
    def _central_inside_central(self) -> Self:
        if self.images == "central" and self.inner != "central":
            raise ValueError("images=central trains at the server and needs inner=central")
        return self

    def uses(self) -> tuple[str, ...]:
        """Name the inner method."""
        return (self.inner,)

    def noises(self) -> tuple[float, ...]:
        """Return the generators'."""
        return (self.noise_multiplier,) if self.noise_multiplier else ()

    def unprotected(self, privacy: PrivacySettings) -> str:
        """Refuse images that no noise covers, labels by private counts, and gradients of single examples."""
        if self.images == "real-shuffled":
            return "images=real-shuffled gives real images away: set images=shuffled, local or none"
        if self.images != "none" and not self.noise_multiplier:
            return (
                f"images={self.images} has each site make images by a generator that was trained without noise: set "
                "{section}.noise_multiplier above 0, or images=none"
            )
        if self.images != "none" and privacy.counts != "public":
            return (
                "images are made in the proportions of the site's classes: set privacy.counts=public where these are "
                "no secret, or images=none"
            )
        if self.diagnostics:
            return "diagnostics=on sends mean gradients of the site's examples as they are: set diagnostics=off"
        return ""

    def disclosure(self) -> Disclosure:
        """State what leaves a device beside what the inner method sends, which says so itself."""
        if self.images == "real-shuffled":
            return Disclosure("real images", began_as="real examples", unchanged=True, labels=True)
        if self.images in ("shuffled", "central"):
            return Disclosure("synthetic images", began_as="noise", labels=True)
        return Disclosure("nothing", update=True)
