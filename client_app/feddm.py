"""FedDM on the device: synthetic images whose embeddings match the site's own (Algorithm 1, client part)."""

from __future__ import annotations

from itertools import count

import torch
from torch import Tensor

from client_app.device import DeviceClient, phase, refuse_small_classes
from common.draws.seeding import process_wide
from common.errors import FederationError
from common.learning.compute import counted
from common.models import Classifier
from common.privacy.events import Event
from common.samples.inputs import from_unit
from common.settings.feddm import FedDMSettings
from common.specs.images import half_shape, sent_images
from common.wire.images import SyntheticImages
from common.wire.weights import Weights
from synth.distribution_matching import Extra, Matching, OfHalfSize, distil, halved
from synth.private_matching import PoissonClasses, distil_privately, rows_see_each_other
from synth.starts import mean_start, mix_start, noise_start, real_start, smooth_start

_COUNTS = "counts"


class FedDMClient(DeviceClient):
    """Distils ipc images of every class it holds, again every round or on from its own last ones (``warm``).

    From real images, a class that has fewer gives as many as it has; where means of K are the start, one that has
    fewer than K starts from noise or is left out. With a ``mechanism`` all that depends on the site's images goes
    through its clip and noise; the labels reveal which classes the site holds.
    """

    @phase("synthesize")
    def synthesize(self, w: Weights) -> SyntheticImages:
        """Return S_k, matched to the site's images around ``w`` (Eq. 9)."""
        settings = self.settings(FedDMSettings)
        if settings.start == "real" or settings.mix_of:
            refuse_small_classes(self, max(settings.ipc, settings.mix_of))
        start, labels = self._start(settings)
        rng = self.generator("matching")
        with process_wide(rng.initial_seed(), "layers"):
            work = self._match if settings.mechanism == "none" else self._match_privately
            images, labels = work(w, start, labels, rng)
        if settings.warm:
            self.remember({"images": images, "labels": labels})
        return sent_images(self.run, images, labels)

    def _match(
        self, w: Weights, start: Tensor, labels: Tensor, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return the images and their labels, and report the loss that is left."""
        settings = self.settings(FedDMSettings)
        distilled = distil(
            self._embedder(w),
            self._inputs,
            self.samples.labels,
            start,
            labels,
            self.matching(settings),
            settings.real_batch,
            rng,
            extra=self.extra(),
        )
        if len(distilled.losses):
            self.report(matching_loss=float(distilled.losses[-1]))
        return distilled.images, distilled.labels

    def extra(self) -> Extra | None:
        """Return a further term of the distillation's loss, a scalar of what an iteration shows; none by default."""
        return None

    def matching(self, settings: FedDMSettings) -> Matching:
        """Return how images are matched."""
        return Matching(
            iterations=settings.iterations,
            image_lr=settings.image_lr,
            image_momentum=settings.image_momentum,
            rho=settings.rho,
            syn_batch=settings.syn_batch,
            augment=settings.dsa,
            real_precision=getattr(torch, settings.real_precision),
            before_step=counted(settings.iterations, self.deadline.check),
        )

    # ---- with differential privacy --------------------------------------------------------------------

    def _match_privately(
        self, w: Weights, start: Tensor, labels: Tensor, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return the images and their labels by the mechanism that is set, and report nothing of them."""
        settings, privacy = self.settings(FedDMSettings), self.run.config.privacy
        assert settings.mechanism != "none"
        if self.extra() is not None:
            raise FederationError(
                f"{self.run.config.section}.mechanism={settings.mechanism} bounds what the matching reveals of an "
                "example, and not what a further term of the loss does: set it to none"
            )
        model = self._embedder(w).train()
        if model.couples_samples or rows_see_each_other(model, self._shape):
            raise FederationError(
                f"feddm.mechanism={settings.mechanism} bounds what each example does, and in this model the examples "
                "of a batch see each other, as with model.norm=batch: choose another model.norm, or another model"
            )
        batches = PoissonClasses.plan(self.samples.labels, settings.real_batch, self._counts())
        # Of a round: classes are disjoint, so that each image's own counts, or the worst of them.
        noise, steps = privacy.noise_multiplier, settings.iterations
        self.draws.charge(
            Event(f"feddm-{settings.mechanism}", noise, sample_rate=batches.rate, steps=steps)
        )
        samples = count()
        images = distil_privately(
            model,
            self._inputs,
            batches,
            start,
            self.matching(settings),
            mechanism=settings.mechanism,
            gaussian=self.draws.gaussian("matching-noise", privacy.noise_multiplier, privacy.clip),
            sample=lambda rates: self.draws.sample(f"matching-sample {next(samples)}", rates),
            generator=rng,
            values=self._values(),
        )
        return images, labels

    def _values(self) -> tuple[Tensor, Tensor]:
        """Return black and white, or a column's bounds, as the model is given them, [C, 1, 1] each."""
        info, device = self.run.info, self.run.device
        low, high = (torch.tensor(v, device=device)[:, None, None] for v in info.ends)
        return from_unit(info, low), from_unit(info, high)

    def _counts(self) -> Tensor | None:
        """Return the site's class counts with noise, drawn once and remembered; None if the true ones are public."""
        settings = self.settings(FedDMSettings)
        if not settings.counts_noise:
            return None
        known = self.recall(_COUNTS)
        if known is None:
            held = torch.unique(self.samples.labels, return_counts=True)[1]
            self.draws.charge(Event("feddm-counts", settings.counts_noise))
            gaussian = self.draws.gaussian("class-counts", settings.counts_noise, 1.0)
            known = {"counts": gaussian.released(held * int(1 / gaussian.grid)).float().cpu()}
            self.remember(known, _COUNTS)
        return known["counts"]

    # ---- of half the size -----------------------------------------------------------------------------

    @property
    def _half(self) -> bool:
        return self.settings(FedDMSettings).side == "half"

    @property
    def _shape(self) -> tuple[int, int, int]:
        """The shape of the images that are distilled."""
        return half_shape(self.run) if self._half else self.run.image_shape

    def _inputs(self, at: Tensor) -> Tensor:
        """Return the site's images as they are matched, of that shape."""
        images = self.samples.inputs(at)
        return halved(images) if self._half else images

    def _embedder(self, w: Weights) -> Classifier | OfHalfSize:
        """Return the model with ``w``, which takes images of that shape."""
        model = self.model(w)
        return OfHalfSize(model) if self._half else model

    def _start(self, settings: FedDMSettings) -> tuple[Tensor, Tensor]:
        """Return the images the matching starts from, [m, C, H, W], and their labels [m]."""
        last = self.recall() if settings.warm else None
        if last is None:
            return self._initial(settings)
        device = self.samples.labels.device
        images, labels = last["images"].to(device), last["labels"].to(device)
        if settings.mechanism == "none":
            return images, labels
        # Equally many of each class, as the mechanism has them: a class that is new starts as in a first round.
        initial, classes = self._initial(settings)
        for each in torch.unique(classes):
            old = images[labels == each]
            initial[(classes == each).nonzero().flatten()[: len(old)]] = old
        return initial, classes

    def _initial(self, settings: FedDMSettings) -> tuple[Tensor, Tensor]:
        """Return what it starts from while it has no images yet."""
        inputs, labels, ipc = self._inputs, self.samples.labels, settings.ipc
        shape, rng = self._shape, self.generator("start")
        if settings.start == "noise":
            return noise_start(labels, ipc, shape, rng)
        if settings.start == "smooth":
            return smooth_start(labels, ipc, shape, rng)
        if settings.start == "mean":
            return mean_start(inputs, labels, ipc, shape, rng)
        if settings.start == "real":
            return real_start(inputs, labels, ipc, rng)
        small = settings.small_class == "noise"
        start = mix_start(inputs, labels, ipc, settings.mix_of, shape, rng, small_as_noise=small)
        if not len(start[1]):
            raise FederationError(
                f"this site has no class of {settings.mix_of} images ({settings.start}), and smaller ones are left "
                "out: set feddm.small_class=noise, or a smaller K"
            )
        return start
