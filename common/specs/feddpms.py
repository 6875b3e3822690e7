"""What travels under FedDPMS beside encoder and classifier: a decoder, scarce classes, and latent means."""

from __future__ import annotations

from common.learning.run import Run
from common.settings.feddpms import FedDPMSSettings
from common.specs.fedvae import decoder_spec, initial_vae, shared_spec
from common.wire.bundle import BundleSpec
from common.wire.codec import Spec
from common.wire.tensors import TensorsSpec, class_list_spec, latent_means_spec

WEIGHTS, DECODER, SCARCE, MEANS = "weights", "decoder", "scarce", "means"

#: the phases beside FedVAE's: the last preliminary round, and a secondary one in which a site shares its means
HAND_OVER, SHARE = "hand-over", "share"

#: figures of a reply: synthetic images in the augmented set, and the noise on a mean over its sensitivity
SYNTHETIC, NOISE_MULTIPLIER = "synthetic", "noise-multiplier"

#: what a ledger calls the release of a class's mean
MECHANISM = "latent-means"

#: the figure that says of a reply's noise that the run's seed gives it
SEEDED = "seeded-noise"


def settings_of(run: Run) -> FedDPMSSettings:
    """Return the method's settings."""
    return run.settings(FedDPMSSettings)


def means_spec(run: Run) -> TensorsSpec:
    """Return the form of a site's means: of each shared class one, or under ``paper`` as many as copies."""
    settings = settings_of(run)
    each = settings.copies if settings.mechanism == "paper" else 1
    return latent_means_spec(initial_vae(run).latent, len(run.info.classes), each, settings.classes)


def handed_over_spec(run: Run) -> BundleSpec:
    """Return the form of the reply in the last preliminary round."""
    return BundleSpec({WEIGHTS: run.spec, DECODER: decoder_spec(run)})


def sent_spec(run: Run) -> BundleSpec:
    """Return the form of what a site is sent in the second stage."""
    parts: dict[str, Spec] = {
        WEIGHTS: shared_spec(run),
        DECODER: decoder_spec(run),
        MEANS: means_spec(run),
    }
    return BundleSpec(parts, optional=frozenset({DECODER, MEANS}))


def reply_spec(run: Run, *, shares: bool) -> BundleSpec:
    """Return the form of what a site replies in the second stage; H_i comes until the site is helped."""
    scarce = class_list_spec(len(run.info.classes), settings_of(run).classes)
    parts: dict[str, Spec] = {WEIGHTS: shared_spec(run), SCARCE: scarce}
    if shares:
        parts[MEANS] = means_spec(run)
    return BundleSpec(parts, optional=frozenset({SCARCE}))


def most_synthetic(run: Run) -> int:
    """Return the most synthetic images that a site adds: alpha n."""
    settings = settings_of(run)
    return settings.copies * settings.classes
