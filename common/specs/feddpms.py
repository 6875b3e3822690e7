"""What FedVAE and FedDPMS are agreed on: the network, the part of it that is sent, and FedDPMS' latent means."""

from __future__ import annotations

import torch

from common.draws.seeding import generator
from common.errors import ConfigError
from common.learning.run import Run
from common.models.building import drawn
from common.models.encoder import Decoder, VAEEncoder
from common.settings.feddpms import FedDPMSSettings
from common.wire.bundle import BundleSpec
from common.wire.form import Spec
from common.wire.tensors import TensorsSpec, class_list_spec, latent_means_spec
from common.wire.weights import WeightsSpec

#: the phases of the two stages: with the VAE's loss, and with the cross-entropy alone
PRELIMINARY, SECONDARY = "preliminary", "secondary"

_SPREAD = "spread."


def initial_vae(run: Run) -> VAEEncoder:
    """Return the run's model with its initial weights; ConfigError if it is no encoder of a VAE."""
    model = run.build_model()
    if not isinstance(model, VAEEncoder):
        raise ConfigError(
            f"method={run.config.method} trains a VAE, and model.name={run.config.model.name} has no variance of its "
            "codes and no decoder: set model.name=vae (and model.projection=0)"
        )
    return model


def shared_spec(run: Run) -> WeightsSpec:
    """Return the form of encoder and classifier without the variance, which the second stage has no use for."""
    return run.spec.only([name for name in run.spec.names if not name.startswith(_SPREAD)])


def start_decoder(run: Run) -> Decoder:
    """Return the decoder that every site begins with, by the run's seed: of others an average would mean nothing."""
    with torch.device("meta"):
        mirror = initial_vae(run).mirror()
    return drawn(mirror, generator(run.config.seed, "decoder")).to(run.device)


def decoder_spec(run: Run) -> WeightsSpec:
    """Return the form of a decoder's weights."""
    return WeightsSpec.of(start_decoder(run))


WEIGHTS, DECODER, SCARCE, MEANS = "weights", "decoder", "scarce", "means"

#: the phases in addition to FedVAE's: the last preliminary round, and a secondary one in which a site shares its means
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
