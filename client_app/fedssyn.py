"""Fedssyn on the device (Algorithm 1): makes images of its own once, and learns from its share of everybody's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from client_app.device import DeviceClient, phase, phases_of
from client_app.synthesis import Synthesis
from common.errors import FederationError
from common.learning.run import Run
from common.models import Classifier
from common.samples.inputs import Samples
from common.specs.fedssyn import (
    DONE,
    IMAGES,
    INNER,
    MIXED,
    MIXED_NOISE,
    OWN,
    OWN_NOISE,
    SHARE,
    SIZE,
    SYNTHESIZE,
    WITHOUT_SHARE,
    asked_spec,
    given_away,
    sent_spec,
    settings_of,
    weights_of,
)
from common.wire.bundle import Bundle
from common.wire.codec import Payload, Spec
from common.wire.numbers import Numbers
from common.wire.pixels import LEVELS, Pixels
from common.wire.weights import Weights
from synth.dissimilarity import site_gradient


class FedssynClient(DeviceClient):
    """Runs the inner method's phases on its own images and its share."""

    @phase(SYNTHESIZE, takes=asked_spec)
    def synthesize(self, asked: Numbers) -> Bundle:
        """Return the site's images, or nothing where the round's time is over before they are made.

        Raises
        ------
        FederationError
            If more are asked for than the run's settings say, or real ones of a site with data of its own.
        """
        settings, size = settings_of(self.run), asked.values[SIZE]
        self.remember({}, SHARE)  # a version of this round, which the next instruction names
        if settings.size and size != settings.size:
            raise FederationError(
                f"the server asks for {size} images where fedssyn.size={settings.size}"
            )
        images = self._given_away() if settings.images == "real-shuffled" else self._made(size)
        if images is None:
            return Bundle({})
        self.tell(**{DONE: 1.0})
        if settings.images == "local":
            self._keep(images)
            return Bundle({})
        return Bundle({IMAGES: images})

    def _made(self, size: int) -> Pixels | None:
        settings = settings_of(self.run)
        synthesis = Synthesis(self, settings, settings.rho, size)
        images = synthesis.images()
        if images is None:
            self.tell(**{DONE: synthesis.done})
        return images

    # ---- the inner method -----------------------------------------------------------------------------

    def phase_named(self, name: str) -> tuple[Callable[[Any], Payload], Callable[[Run], Spec]]:
        """Return a phase of the inner method's, which comes with the site's share where it has none, or this one's.

        Raises
        ------
        FederationError
            If neither has it.
        """
        if name in phases_of(type(self)):
            return super().phase_named(name)
        inner = settings_of(self.run).inner
        _, takes = self.client_of(inner, self.samples).phase_named(name)
        return partial(self._learn, name), lambda run: sent_spec(run, takes(run.of(inner)))

    def _learn(self, name: str, given: Bundle) -> Payload:
        """Return what the inner method's phase returns."""
        settings = settings_of(self.run)
        samples = self._with_share(given)
        drawn = len(self.samples) if settings.scaled else len(samples)
        inner = self.client_of(settings.inner, samples, drawn)
        work, _ = inner.phase_named(name)
        reply = work(given.parts[INNER])
        if not settings.diagnostics:
            return reply
        weights = weights_of(given.parts[INNER])
        parts: dict[str, Payload] = {
            INNER: reply,
            OWN: self._gradient(weights, self.samples, OWN_NOISE),
        }
        if len(samples) > len(self.samples):
            parts[MIXED] = self._gradient(weights, samples, MIXED_NOISE)
        return Bundle(parts)

    def _gradient(self, weights: Weights, samples: Samples, noise: str) -> Weights:
        """Return the mean gradient at ``weights`` over ``samples``, and report how far the images' own lie from it."""
        model = self.model(weights).eval()
        found = site_gradient(
            model,
            self.run.task.loss,
            samples.inputs,
            samples.labels,
            before_chunk=self.deadline.check,
        )
        self.report(**{noise: float(found.noise)})
        named = dict(model.named_parameters())
        each = torch.split(found.mean.float().cpu(), [p.numel() for p in named.values()])
        return Weights(
            {n: g.reshape(p.shape) for (n, p), g in zip(named.items(), each, strict=True)}
        )

    def model(self, weights: Weights) -> Classifier:
        """Return the inner method's model with ``weights``."""
        return self.client_of(settings_of(self.run).inner, self.samples).model(weights)

    # ---- the share ------------------------------------------------------------------------------------

    def _keep(self, share: Pixels) -> None:
        self.remember({"images": share.values, "labels": share.labels}, SHARE)

    def _with_share(self, given: Bundle) -> Samples:
        """Return D_k and the site's share, which is kept when it comes, or D_k alone where there is none."""
        settings, own = settings_of(self.run), self.samples
        if settings.images == "none":
            return own
        if SHARE in given.parts:
            share = given.part(SHARE, Pixels)
            self._keep(share)
            others = self._as_samples(share.values, share.labels)
        elif (kept := self.recall(SHARE)) is not None:
            others = self._as_samples(kept["images"], kept["labels"])
        else:
            self.tell(**{WITHOUT_SHARE: 1.0})
            return own
        if settings.images == "real-shuffled":
            own = own.at(self._division()[1])
        return own.joined(others)

    def _as_samples(self, values: Tensor, labels: Tensor) -> Samples:
        info, device = self.run.info, self.run.device
        mean, std = (torch.tensor(v)[:, None, None] for v in (info.mean, info.std))
        return Samples(values, labels, 1 / (LEVELS * std), -mean / std).to(device)

    # ---- a study of shuffling -------------------------------------------------------------------------

    def _given_away(self) -> Pixels:
        """Return the real images that others get."""
        if self.own_data:
            raise FederationError(
                "fedssyn.images=real-shuffled gives real images away, for study: this site's are its own, and stay"
            )
        info, positions = self.run.info, self._division()[0]
        mean, std = (
            torch.tensor(v, device=self.run.device)[:, None, None] for v in (info.mean, info.std)
        )
        shown = (self.samples.inputs(positions) * std + mean).clamp(0, 1) * LEVELS
        labels = self.samples.labels[positions]
        return Pixels(
            shown.round().to(torch.uint8).cpu(), labels.cpu(), tuple(info.mean), tuple(info.std)
        )

    def _division(self) -> tuple[Tensor, Tensor]:
        """Return the positions of the images that are given away, p n_k of them, and of those that are kept."""
        n, draws = len(self.samples), self.generator("given-away", 0)
        order = torch.randperm(n, generator=draws, device=self.run.device)
        cut = given_away(settings_of(self.run), n)
        return order[:cut], order[cut:]
