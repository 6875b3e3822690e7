"""FedVAE on the device: FedDPMS' two stages of training, and a decoder that stays."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from client_app.device import DeviceClient, phase
from client_app.local_training import train_locally
from common.learning.training import Local
from common.models import Classifier
from common.models.encoder import VAE, Decoder, VAEEncoder
from common.settings.feddpms import FedVAESettings
from common.specs.feddpms import PRELIMINARY, SECONDARY, shared_spec, start_decoder
from common.wire.weights import Weights
from synth.beta_vae import auto_encoding_loss, sampled
from synth.row_draws import RowDraws

_DECODER = "decoder"


class FedVAEClient(DeviceClient):
    """Trains encoder, decoder and classifier, then encoder and classifier alone."""

    @phase(PRELIMINARY)
    def prepare(self, w: Weights) -> Weights:
        """Return encoder and classifier, trained with l_1 + lambda (l_2 + l_3) with the site's own decoder."""
        return self.train_vae(w)[0]

    @phase(SECONDARY, takes=shared_spec)
    def refine(self, w: Weights) -> Weights:
        """Return encoder and classifier, trained with the cross-entropy from ``w``."""
        model, _ = train_locally(self, w)
        return Weights.of(model, w.codec).only(shared_spec(self.run))

    def train_vae(self, w: Weights) -> tuple[Weights, Weights]:
        """Return encoder and classifier, and the decoder, which the site remembers."""
        decoder = self.kept_decoder()

        def with_decoder(model: Classifier) -> nn.Module:
            assert isinstance(model, VAEEncoder)
            return VAE(model, decoder)

        model, _ = train_locally(self, w, self._auto_encoding(), around=with_decoder)
        kept = Weights.of(decoder, w.codec)
        self.keep_decoder(kept)
        return Weights.of(model, w.codec), kept

    def keep_decoder(self, weights: Weights) -> None:
        """Remember a decoder instead of the last one."""
        self.remember(weights.tensors, _DECODER)

    def kept_decoder(self) -> Decoder:
        """Return the decoder that the site remembers, or the start that all sites share."""
        decoder = start_decoder(self.run)
        Weights(self.recall(_DECODER) or {}).load_into(decoder)
        return decoder

    def _auto_encoding(self) -> Local:
        task, settings = self.run.task, self.settings(FedVAESettings)
        draws = self.generator("latent-noise")

        def draw(model: nn.Module, targets: Tensor, rows: RowDraws | None) -> tuple[Tensor]:
            assert isinstance(model, VAE)
            if rows is not None:
                return (rows.normal(model.encoder.latent),)
            shape = (len(targets), model.encoder.latent)
            return (torch.randn(shape, generator=draws, device=targets.device),)

        def objective(
            model: nn.Module, x: Tensor, targets: Tensor, positions: Tensor, noise: Tensor
        ) -> Tensor:
            assert isinstance(model, VAE)
            mu, log_variance = model.encoder.encode(x)
            z = sampled(mu, log_variance, noise)
            drawn = model.decoder(z)
            own = auto_encoding_loss(
                mu, log_variance, drawn, x, settings.squared_error, settings.kl
            )
            return task.loss(model.encoder.classify(z), targets) + settings.vae_weight * own

        return Local(objective=objective, draw=draw)
