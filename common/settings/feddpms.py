"""FedDPMS' settings (federated differentially private means sharing)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from common.settings.base import Clip, Disclosure, Noise, setting
from common.settings.fedvae import FedVAESettings

if TYPE_CHECKING:
    from common.settings.sections import PrivacySettings


class FedDPMSSettings(FedVAESettings):
    """Sites share noisy means of the latent codes of their largest classes; others train on images drawn from these.

    ``single-release`` and ``received`` are what makes a guarantee as strong as it can be, and not the paper's, whose
    values (``paper``, ``trained``, sigma 3 or 4) are in the files of its tables.
    """

    weighting: Literal["augmented", "counts", "uniform"] = setting(  # type: ignore[assignment]
        "augmented",
        "a site's weight in the average: its images and the synthetic ones (the paper), its images, or one",
    )
    mechanism: Literal["single-release", "paper", "overall-mean"] = setting(
        "single-release",
        "how a mean leaves: with noise once, the receiver draws copies around it; or (the paper) as noisy copies; or "
        "(a control) with noise once, but the mean of all sites' means is handed on instead of each",
        source="the same noise protects sqrt(copies) times better when it is drawn once",
    )
    classes: int = setting(
        3, "most abundant classes shared, and scarcest ones asked for", symbol="n", ge=1
    )
    copies: int = setting(50, "images drawn of each class", symbol="alpha", ge=1, le=10_000)
    sigma: Noise = setting(
        0.4,
        "standard deviation of the noise on a latent mean that leaves, each number of which lies in [0, 1]",
        symbol="sigma",
        source="about 3 / sqrt(50): as private as the paper's fifty copies with 3",
        allowed="0, or a number from 0.01 to 10000",
    )
    spread: float = setting(
        0.0,
        "standard deviation of the copies that a receiver draws around a mean; 0: sigma / sqrt(copies)",
        ge=0,
    )
    latents: Literal["received", "trained"] = setting(
        "received",
        "the weights that encode: those received this round, of which the sensitivity holds; or (the paper) those just "
        "trained on the very images",
    )
    clip: Clip = setting(
        0.0,
        "longest latent code, longer ones are scaled down to it; 0: any",
        allowed="0, or a number from 1e-6 to 1e6",
    )
    max_draws: int = setting(50, "draws of a class, times copies, before it is left short", ge=1)
    smallest: int = setting(20, "images a site must have of a class to share its mean", ge=1)

    def copies_around(self) -> float:
        """Return the standard deviation of the copies that a receiver draws."""
        return self.spread or self.sigma / self.copies**0.5

    def noises(self) -> tuple[float, ...] | None:
        """Return none without noise; else they follow the sites' numbers of images."""
        return None if self.sigma else ()

    def unprotected(self, privacy: PrivacySettings) -> str:
        """Refuse means without noise, a choice among noisy ones, and lists of classes ordered by private counts."""
        if not self.sigma:
            return "sigma=0 sends means of latent codes without noise: set sigma above 0"
        if self.mechanism == "paper":
            return (
                "mechanism=paper sends those of its noisy copies that pass a test, and copies that were chosen for "
                "their noise have another noise than what is counted with: set mechanism=single-release"
            )
        if privacy.counts != "public":
            return (
                "each site names its most abundant and its scarcest classes, and shares means of so many images: set "
                "privacy.counts=public where these are no secret"
            )
        return super().unprotected(privacy)

    def disclosure(self) -> Disclosure:
        """State what leaves a device."""
        return Disclosure("weights and noisy latent means", numbers=True, labels=True, update=True)
