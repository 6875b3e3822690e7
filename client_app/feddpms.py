"""FedDPMS on the device (Algorithm 2): trains, shares noisy means of its codes, and draws images of another site's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from client_app.device import phase
from client_app.fedvae import FedVAEClient
from client_app.local_training import train_locally
from common.models import Classifier
from common.models.encoder import Decoder, VAEEncoder
from common.privacy.accounting import latent_sensitivity
from common.privacy.events import Event, parallel
from common.samples.inputs import Samples
from common.settings.feddpms import FedDPMSSettings
from common.specs.feddpms import (
    DECODER,
    HAND_OVER,
    MEANS,
    MECHANISM,
    SCARCE,
    SECONDARY,
    SHARE,
    WEIGHTS,
    sent_spec,
    shared_spec,
)
from common.wire.bundle import Bundle
from common.wire.form import Payload
from common.wire.tensors import LABELS, VECTORS, Tensors, class_list, latent_means
from common.wire.weights import Weights
from synth.latent_sharing import (
    accepted_copies,
    mean_steps,
    most_abundant,
    scarcest,
)

_SYNTHETIC = "synthetic"


class FedDPMSClient(FedVAEClient):
    """Is helped once, and from then on trains on its own images and those drawn of its match's means."""

    @phase(HAND_OVER)
    def hand_over(self, w: Weights) -> Bundle:
        """Return encoder and classifier, and for once the decoder, of the last preliminary round."""
        weights, decoder = self.train_vae(w)
        return Bundle({WEIGHTS: weights, DECODER: decoder})

    @phase(SECONDARY, takes=sent_spec)
    def refine(self, given: Bundle) -> Bundle:  # type: ignore[override]
        """Return encoder and classifier, trained on the augmented set, and H_i until another site has helped."""
        parts, _, helped = self._second_stage(given)
        if helped and DECODER not in given.parts:
            self.keep_decoder(Weights({}))  # shared, and helped: nothing is left to decode
        return Bundle(parts)

    @phase(SHARE, takes=sent_spec)
    def share(self, given: Bundle) -> Bundle:
        """Return the same, and noisy means of the site's most abundant classes."""
        parts, trained, _ = self._second_stage(given)
        means = self._means(given.part(WEIGHTS, Weights), trained, self._received_decoder(given))
        return Bundle({**parts, MEANS: means})

    def _second_stage(self, given: Bundle) -> tuple[dict[str, Payload], Classifier, bool]:
        """Draw what there is to draw, train, and return what leaves, the model, and whether the site is helped."""
        w = given.part(WEIGHTS, Weights)
        if DECODER in given.parts:
            self.keep_decoder(given.part(DECODER, Weights))
        synthetic = self._synthesis(w, given) if MEANS in given.parts else self.recall(_SYNTHETIC)
        model, _ = train_locally(self, w, samples=self._augmented(synthetic))
        parts: dict[str, Payload] = {
            WEIGHTS: Weights.of(model, w.codec).only(shared_spec(self.run))
        }
        if synthetic is None:
            parts[SCARCE] = class_list(scarcest(self._counts, self._settings.classes))
        else:
            self.tell(synthetic=len(synthetic["labels"]))
        return parts, model, synthetic is not None

    # ---- a match's means become images ----------------------------------------------------------------

    def _synthesis(self, w: Weights, given: Bundle) -> Mapping[str, Tensor]:
        """Return the images drawn of the means that were sent, with their labels, and remember them."""
        means, decoder = given.part(MEANS, Tensors), self._received_decoder(given)
        device = self.run.device
        codes, labels = means[VECTORS].to(device), means[LABELS].to(device)
        if self._settings.mechanism != "paper":
            codes, labels = self._copies(codes, labels, decoder, self.model(w))
        with torch.no_grad():
            images = decoder(codes)
        drawn = {"images": images.cpu(), "labels": labels.cpu()}
        self.remember(drawn, _SYNTHETIC)
        return drawn

    def _received_decoder(self, given: Bundle) -> Decoder:
        """Return the federation's decoder: the one that came, or the one that is remembered."""
        decoder = self.kept_decoder()
        if DECODER in given.parts:
            given.part(DECODER, Weights).load_into(decoder)
        return decoder.eval()

    def _copies(
        self, means: Tensor, labels: Tensor, decoder: Decoder, judge: Classifier
    ) -> tuple[Tensor, Tensor]:
        """Return copies around means that were noised once, such as the federation's model takes for their class.

        All of this is post-processing of what was received.
        """
        settings, draws = self._settings, self.generator("copies")
        spread = settings.copies_around()

        def spread_around(rows: Tensor) -> Tensor:
            self.deadline.check()  # copies may never be taken
            shape = (len(rows), means.shape[1])
            return means[rows] + spread * torch.randn(shape, generator=draws, device=means.device)

        return _accepted(spread_around, labels, decoder, judge, settings)

    def _augmented(self, synthetic: Mapping[str, Tensor] | None) -> Samples | None:
        """Return Dbar_i, or nothing where it is D_i."""
        if synthetic is None or not len(synthetic["labels"]):
            return None
        own, device = self.samples.inputs(slice(None)), self.run.device
        images = torch.cat([own, synthetic["images"].to(device)])
        labels = torch.cat([self.samples.labels, synthetic["labels"].to(device)])
        return Samples.of(images, labels)

    # ---- the site's own means -------------------------------------------------------------------------

    def _means(self, w: Weights, trained: Classifier, decoder: Decoder) -> Tensors:
        """Return the means of the codes of the site's own images of its most abundant classes, with noise."""
        settings = self._settings
        classes = most_abundant(self._counts, settings.classes, settings.smallest)
        encoder = trained if settings.latents == "trained" else self.model(w)
        labels = torch.tensor(classes, dtype=torch.int64, device=self.run.device)
        codec = self.run.config.wire.latents
        assert isinstance(encoder, VAEEncoder)
        if not classes:
            return latent_means(torch.zeros(0, encoder.latent), labels.cpu(), codec)
        self._charge(classes, encoder.latent)
        codes, of = self._codes(encoder, labels)
        gaussian = self.draws.gaussian("latent-means", settings.sigma, 1.0)
        steps = mean_steps(codes, of, classes, settings.clip, gaussian)

        def noisy(rows: Tensor) -> Tensor:
            self.deadline.check()  # copies may never be taken
            return gaussian.released(steps[rows]).to(codes.dtype)

        if settings.mechanism == "paper":
            vectors, labels = _accepted(noisy, labels, decoder, trained, settings)
        else:
            vectors = noisy(torch.arange(len(steps), device=steps.device))
        return latent_means(vectors.cpu(), labels.cpu(), codec)

    def _charge(self, classes: tuple[int, ...], dimension: int) -> None:
        """Charge the means, and report the noise relative to the sensitivity to one image.

        An image is in one class, and the smallest one has the least noise for what it can change. Of ``paper`` the
        copies that are kept are charged; which these are no event covers.
        """
        settings = self._settings
        steps = settings.copies if settings.mechanism == "paper" else 1
        noises = [
            settings.sigma / latent_sensitivity(dimension, self._counts[c], settings.clip)
            for c in classes
        ]
        events = [Event(MECHANISM, noise, steps=steps, adjacency="replace-one") for noise in noises]
        worst = parallel(events)
        self.draws.charge(worst)
        self.tell(noise_multiplier=worst.noise_multiplier)

    @torch.no_grad()
    def _codes(self, encoder: VAEEncoder, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the codes mu of the site's images of ``classes``, and their labels."""
        encoder.eval()
        positions = torch.isin(self.samples.labels, classes).nonzero().flatten()
        parts = torch.split(positions, self.run.config.evaluation.batch)
        codes = torch.cat([encoder.embed(self.samples.inputs(part)) for part in parts])
        return codes, self.samples.labels[positions]

    @property
    def _counts(self) -> list[int]:
        classes = len(self.run.info.classes)
        return torch.bincount(self.samples.labels, minlength=classes).tolist()

    @property
    def _settings(self) -> FedDPMSSettings:
        return self.settings(FedDPMSSettings)


def _accepted(
    copies_of: Callable[[Tensor], Tensor],
    labels: Tensor,
    decoder: Decoder,
    judge: Classifier,
    settings: FedDPMSSettings,
) -> tuple[Tensor, Tensor]:
    """Return ``copies`` copies of each mean whose decoded image ``judge`` takes for its class (Eq. 1 to 3)."""
    judge.eval()

    @torch.no_grad()
    def accepts(copies: Tensor, classes: Tensor) -> Tensor:
        predicted: Tensor = judge(decoder(copies)).argmax(1)
        return predicted == classes

    most = settings.max_draws * settings.copies
    return accepted_copies(copies_of, labels, accepts, settings.copies, most)
