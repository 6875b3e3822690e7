"""FedDM on the device: synthetic images whose embeddings match the site's own (Algorithm 1, client part)."""

from __future__ import annotations

from logging import getLogger

import torch
from torch import Tensor

from client_app.device import DeviceClient, phase
from client_app.small_classes import refuse_small_classes
from common.seeding import process_wide
from common.settings.feddm import FedDMSettings
from common.wire import SyntheticImages, Weights
from synth.distribution_matching import distil, noise_start, real_start

logger = getLogger("flwr")


class FedDMClient(DeviceClient):
    """Distils ipc images of every class it holds, afresh every round or on from its own last ones (``warm``).

    From real images, a class that has fewer gives as many as it has.
    """

    @phase("synthesize")
    def synthesize(self, w: Weights) -> SyntheticImages:
        """Return S_k, matched to the site's images around ``w`` (Eq. 9)."""
        settings = self.settings(FedDMSettings)
        if settings.start == "real":
            refuse_small_classes(self, settings.ipc)
        start, labels = self._start(settings)
        rng = self.generator("matching")
        with process_wide(rng.initial_seed(), "layers"):
            distilled = distil(
                self.model(w),
                self.samples.inputs,
                self.samples.labels,
                start,
                labels,
                iterations=settings.iterations,
                image_lr=settings.image_lr,
                image_momentum=settings.image_momentum,
                real_batch=settings.real_batch,
                syn_batch=settings.syn_batch,
                rho=settings.rho,
                augment=settings.augment,
                real_precision=getattr(torch, settings.real_precision),
                generator=rng,
                before_step=self.deadline.check,
            )
        if len(distilled.losses):
            self.report(matching_loss=float(distilled.losses[-1]))
        if settings.warm:
            self.remember({"images": distilled.images, "labels": distilled.labels})
        return SyntheticImages(
            distilled.images.cpu(), distilled.labels.cpu(), self.run.config.wire.images
        )

    def _start(self, settings: FedDMSettings) -> tuple[Tensor, Tensor]:
        """Return the images the matching starts from, [m, C, H, W], and their labels [m]."""
        last = self.recall() if settings.warm else None
        if last is not None:
            device = self.samples.labels.device
            return last["images"].to(device), last["labels"].to(device)
        rng = self.generator("start")
        if settings.start == "noise":
            return noise_start(self.samples.labels, settings.ipc, self.run.image_shape, rng)
        return real_start(self.samples.inputs, self.samples.labels, settings.ipc, rng)
