"""Fedssyn on the device (Algorithm 1): makes images once, and learns from its share of all sites'."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from client_app.device import DeviceClient
from client_app.synthesis import Synthesis
from common.errors import FederationError
from common.learning.run import Run
from common.models import Classifier
from common.samples.inputs import Samples, in_unit, samples_of_bytes
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
    Images,
    asked_spec,
    disclosed_by_source,
    given_away,
    images_in,
    images_of,
    sent_spec,
    settings_of,
    values_of,
    weights_of,
)
from common.wire.bundle import Bundle
from common.wire.coders import LEVELS
from common.wire.form import Payload, Spec
from common.wire.images import SyntheticImages
from common.wire.tensors import Tensors
from common.wire.weights import Weights
from synth.dissimilarity import site_gradient
from synth.distribution_matching import full_size


class FedssynClient(DeviceClient):
    """Makes images once, and runs the inner method's phases on the site's own and its share."""

    def phase_named(self, name: str) -> tuple[Callable[[Any], Payload], Callable[[Run], Spec]]:
        """Return what makes the site's images, or an inner phase, maybe with a share; FederationError if none."""
        settings = settings_of(self.run)
        if settings.made_by is not None and name.partition("/")[0] == SYNTHESIZE:
            work, takes = self._source(name)
            return partial(self._make, work), takes
        inner = settings.inner
        _, inner_takes = self.client_of(inner, self.samples).phase_named(name)
        return partial(self._learn, name), lambda run: sent_spec(run, inner_takes(run.of(inner)))

    def _make(self, work: Callable[[Any], Payload | None], given: Payload) -> Bundle:
        """Return the site's images, or nothing where the round's time is over before they are made.

        Raises
        ------
        FederationError
            If they are unchanged real images of a site with its own data.
        """
        disclosed = disclosed_by_source(self.run)
        if self.user_data and disclosed is not None and disclosed.unchanged:
            raise FederationError(
                "the run has sites give real images to others as they are, for study: this site's are its own, and stay"
            )
        self.remember({}, SHARE)  # a version of this round, which the next instruction names
        made = work(given)
        if made is None:
            return Bundle({})
        self.tell(**{DONE: 1.0})
        if not settings_of(self.run).shared:
            images = images_in(made)
            if isinstance(images, SyntheticImages):  # as large as others get them of the server
                images = replace(images, images=full_size(images.images, self.run.image_shape))
            self._keep(images)
            return Bundle({})
        return Bundle({IMAGES: made})

    # ---- the inner method -----------------------------------------------------------------------------

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

    def judged(self, w: Weights) -> Classifier:
        """Return what the inner method has the site judge."""
        return self.client_of(settings_of(self.run).inner, self.samples).judged(w)

    # ---- the share ------------------------------------------------------------------------------------

    def _keep(self, share: Images) -> None:
        # Copies: the method that made them may remember these very tensors in its own slot.
        self.remember({"images": values_of(share).clone(), "labels": share.labels.clone()}, SHARE)

    def _with_share(self, given: Bundle) -> Samples:
        """Return D_k and the site's share, which is kept when it comes, or D_k alone without a share."""
        if settings_of(self.run).made_by is None:
            return self.samples
        if SHARE in given.parts:
            share: Any = given.parts[SHARE]
            self._keep(share)
            others = self._as_samples(values_of(share), share.labels)
        elif (kept := self.recall(SHARE)) is not None:
            others = self._as_samples(kept["images"], kept["labels"])
        else:
            self.tell(**{WITHOUT_SHARE: 1.0})
            return self.samples
        if settings_of(self.run).source == "real":
            return self.samples.at(self._given_away()[1]).joined(others)
        return self.samples.joined(others)

    def _as_samples(self, values: Tensor, labels: Tensor) -> Samples:
        if values.dtype == torch.uint8:
            return samples_of_bytes(self.run.info, values, labels).to(self.run.device)
        return Samples.of(values, labels).to(self.run.device)

    # ---- image sources --------------------------------------------------------------------------------

    def _source(self, name: str) -> tuple[Callable[[Any], Payload | None], Callable[[Run], Spec]]:
        """Return what makes a payload with the images, None without images, and the payload that it takes."""
        settings = settings_of(self.run)
        if settings.source == "real":
            return self._give, asked_spec
        if settings.source != "distilled":
            return self._draw, asked_spec
        method = settings.distilled_by  # by its own settings; its phase is named after a slash
        work, takes = self.client_of(method, self.samples).phase_named(name.partition("/")[2])
        return work, lambda run: takes(run.of(method))

    def _draw(self, asked: Tensors) -> Images | None:
        """Return images of a generator that the site trains, as many as requested."""
        settings, size = settings_of(self.run), int(asked[SIZE])
        if settings.size and size != settings.size:
            raise FederationError(
                f"the server asks for {size} images where fedssyn.size={settings.size}"
            )
        synthesis = Synthesis(self, settings, size)
        images = synthesis.images()
        if images is None:
            self.tell(**{DONE: synthesis.done})
        return images

    def _give(self, asked: Tensors) -> Images:
        """Return real images, of which the site keeps no copy to learn from: a study of shuffling."""
        positions = self._given_away()[0]
        shown = in_unit(self.run.info, self.samples.inputs(positions)).clamp(0, 1) * LEVELS
        labels = self.samples.labels[positions]
        return images_of(self.run, shown.round().to(torch.uint8).cpu(), labels.cpu())

    def _given_away(self) -> tuple[Tensor, Tensor]:
        """Return the positions of the images that are given away, p n_k of them, and of those that are kept."""
        n, draws = len(self.samples), self.generator("given-away", 0)
        order = torch.randperm(n, generator=draws, device=self.run.device)
        cut = given_away(settings_of(self.run), n)
        return order[:cut], order[cut:]
