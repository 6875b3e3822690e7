"""FedDPMS' settings (federated differentially private means sharing), and FedVAE's, without the sharing."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from common.settings.base import Clip, Disclosure, Noise, setting
from common.settings.fedavg import FedAvgSettings

if TYPE_CHECKING:
    from common.settings.sections import PrivacySettings


class FedVAESettings(FedAvgSettings):
    """Sites train a VAE that classifies, then its encoder and classifier alone; its decoder never leaves them."""

    comment = "No decoder was sent, only encoders and classifiers."
    # the paper's sizes for pictures of 28x28; its tables state those for others
    needed: ClassVar = {
        "model.name": "vae",
        "model.depth": 1,
        "model.width": 16,
        "model.embedding": 32,
    }

    epochs: int = setting(
        5, "passes over the site's images a round", symbol="E", ge=1, amount="epochs"
    )
    local_optimizer: Literal["sgd", "adam"] = setting(
        "adam", "what takes the steps: torch's SGD, or its Adam with the usual betas"
    )
    lr: float = setting(0.001, "learning rate", symbol="eta", gt=0)
    batch: int = setting(64, "images a step", symbol="B", ge=1)
    lr_decay: float = setting(
        0.5, "factor of the learning rate, every lr_decay_every rounds", gt=0, le=1
    )
    lr_decay_every: int = setting(
        10, "rounds from one decay of the learning rate to the next", ge=1
    )
    vae_weight: float = setting(
        0.05, "weight of the VAE's loss, KL + MSE, to the cross-entropy's 1", symbol="lambda", ge=0
    )
    squared_error: Literal["sum", "mean"] = setting(
        "sum",
        "the reconstruction's squared error over an image's values: their sum, as the KL is over the code's numbers, "
        "or their mean, with which the KL leaves a decoder that draws one image of every code",
    )
    kl: Literal["sum", "mean"] = setting(
        "sum",
        "the KL over the code's numbers: their sum, or their mean, as the released code has it with the mean squared "
        "error",
    )
    preliminary_rounds: int = setting(
        0, "rounds with the VAE's loss; 0: two fifths of all", symbol="T_p", ge=0
    )

    def preliminary(self, rounds: int) -> int:
        """Return T_p of a run of so many rounds: at least 1, so that there is a decoder."""
        return self.preliminary_rounds or max(1, round(0.4 * rounds))


class FedDPMSSettings(FedVAESettings):
    """Sites share noisy means of the latent codes of their largest classes; others train on images drawn from these.

    ``single-release`` and ``received`` are what makes a guarantee as strong as it can be, and not the paper's, whose
    values (``paper``, ``trained``, sigma 3 or 4) are in the files of its tables.
    """

    sends = Disclosure("weights and noisy latent means", numbers=True, labels=True, update=True)

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
        3, "most abundant classes shared, and scarcest ones requested", symbol="n", ge=1
    )
    copies: int = setting(50, "images drawn of each class", symbol="alpha", ge=1, le=10_000)
    sigma: Noise = setting(
        0.4,
        "standard deviation of the noise on a latent mean that leaves, each number of which is in [0, 1]",
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

    def remark(self) -> str:
        """Return what noise the means carry and what it does not cover."""
        chosen = self.mechanism == "paper"
        drawn = f"for each of up to {self.copies} copies" if chosen else "once"
        sentences = [
            f"The means of a site's largest classes carry normal noise of standard deviation {self.sigma:g}, drawn "
            f"{drawn}; which classes are its largest and smallest is not protected."
        ]
        if chosen:
            sentences.append(
                "Which copies were kept was decided by weights just trained on the images: no epsilon covers that."
            )
        if self.latents == "trained":
            sentences.append(
                "The encoder had just been trained on the very images, which the noise does not cover."
            )
        return " ".join(sentences)

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
