"""FedMD and DS-FL on the device (Li and Wang, 2019; Itahara et al., 2021): digest, revisit, answer."""

from __future__ import annotations

from torch import Tensor

from client_app.device import DeviceClient, phase
from client_app.local_training import train_aside, train_locally
from common.errors import FederationError
from common.models import Classifier
from common.privacy.events import Event
from common.settings.fedavg import FedMDSettings
from common.specs.logits import (
    ANSWER,
    IMAGES,
    PHASE,
    SHARES,
    answers,
    logits,
    public_samples,
    sent_spec,
)
from common.wire.bundle import Bundle
from common.wire.tensors import Tensors
from common.wire.weights import Weights
from synth.logit_distillation import noisy

MECHANISM = "logits"
"""What a ledger calls a round's release."""

_PUBLIC = "public"


class FedMDClient(DeviceClient):
    """Keeps its own model, which never leaves the site, and sends its logits on the public images."""

    @phase(PHASE, takes=sent_spec)
    def answer(self, given: Bundle) -> Tensors:
        """Return the logits of the own model, after training on all sites' answers and the site's own images."""
        images, settings = self._public(given), self.settings(FedMDSettings)
        privacy, model = self.run.config.privacy, self._own()
        private = privacy.active and settings.mechanism == "logits"
        shares = given.part(ANSWER, Tensors)[SHARES] if ANSWER in given.parts else None
        if shares is not None and len(shares) != len(images):
            raise FederationError(f"{len(shares)} answers came to {len(images)} public images")
        if private:  # before an example is read
            self.draws.charge(Event(MECHANISM, privacy.noise_multiplier))
        if shares is not None and settings.digest_epochs:
            digest = settings.model_copy(update={"epochs": settings.digest_epochs})
            samples = public_samples(self.run, images, shares)
            train_aside(self, model, digest, "digest", samples=samples)
        if private:  # the clip bounds what is sent, independently of what the model learns
            train_aside(self, model, settings, "local-training")
        else:
            model, _ = train_locally(self, Weights.of(model))
        self.remember(Weights.of(model).tensors)
        found = answers(self.run, model, images)
        if private:
            noise, clip = privacy.noise_multiplier, privacy.clip
            found = noisy(found, clip, self.draws.gaussian(MECHANISM, noise, 2 * clip))
        return logits(found, self.run.config.wire.latents)

    def judged(self, w: Weights) -> Classifier:
        """Return the site's own model, which is what it judges."""
        return self.model(w) if self.recall() is None else self._own()

    def _own(self) -> Classifier:
        """Return the site's own model in its last state, at first as the run's seed draws it for all."""
        own = self.recall()
        return self.model(Weights.of(self.run.build_model()) if own is None else Weights(own))

    def _public(self, given: Bundle) -> Tensor:
        """Return the public images, which came now or before."""
        if IMAGES in given.parts:
            images = given.part(IMAGES, Tensors)[IMAGES]
            self.remember({IMAGES: images}, _PUBLIC)
            return images
        kept = self.recall(_PUBLIC)
        if kept is None:
            raise FederationError(
                f"site '{self.site}' no longer has the public images: it gets them with its next instruction"
            )
        return kept[IMAGES]
