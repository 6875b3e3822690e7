"""What FedVAE and FedDPMS are agreed on: the network, the part of it that travels, and the decoders' common start."""

from __future__ import annotations

import torch

from common.draws.seeding import generator
from common.errors import ConfigError
from common.learning.run import Run
from common.models.building import drawn
from common.models.encoder import Decoder, VAEEncoder
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
