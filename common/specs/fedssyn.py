"""What Fedssyn sends in addition to the inner method's payloads: requests for images, images, a share."""

from __future__ import annotations

import torch
from torch import Tensor

from common.errors import FederationError
from common.learning.run import Run
from common.settings.base import Disclosure
from common.settings.fedssyn import FedssynSettings
from common.specs.images import picture_constants, sent_images
from common.wire.bundle import Bundle, BundleSpec
from common.wire.form import Payload, Spec, TensorSpec
from common.wire.images import Pixels, PixelsSpec, SyntheticImages, SyntheticImagesSpec
from common.wire.tensors import TensorsSpec
from common.wire.weights import Weights

Images = Pixels | SyntheticImages
"""Labelled images, as a generator gives them or as another method does."""

#: the phase in which a site makes images, behind a slash that of the method that makes them; all others are the inner
#: method's
SYNTHESIZE = "make-images"

#: parts of the reply to it, and of an instruction for the inner method
IMAGES, INNER, SHARE = "images", "inner", "share"

#: parts of a reply under ``diagnostics``: mean gradients over D_k, and over D_k and the share
OWN, MIXED = "own", "mixed"

#: figures sent with them: the mean squared distance of single images' gradients
OWN_NOISE, MIXED_NOISE = "gradient-noise", "gradient-noise-mixed"

#: the number requested of a site: n_tilde
SIZE = "size"

#: figures of a reply: how much of a generator's training is done, from 0 to 1; and whether a share is missing
DONE, WITHOUT_SHARE = "synthesis-done", "without-share"


def settings_of(run: Run) -> FedssynSettings:
    """Return the method's settings."""
    return run.settings(FedssynSettings)


def disclosed_by_source(run: Run) -> Disclosure | None:
    """Return the disclosure of the images that leave a site; None if none leave."""
    settings = settings_of(run)
    if settings.made_by is None or not settings.shared:
        return None
    if settings.made_by.by_method:
        return run.of(settings.distilled_by).config.settings.disclosure()
    return settings.made_by.disclosure


def given_away(settings: FedssynSettings, images: int) -> int:
    """Return how many of its real ``images`` a site gives away with ``source=real``: p n_k, at least one."""
    return max(1, round(settings.mixed * images))


def images_of(run: Run, values: Tensor, labels: Tensor) -> Images:
    """Return the payload of images: of bytes, or of a model's inputs, which go as ``wire.images`` says."""
    info = run.info
    if values.dtype == torch.uint8:
        return Pixels(values, labels, info.mean, info.std, run.config.wire.pixels)
    return sent_images(run, values, labels)


def images_in(made: Payload) -> Images:
    """Return the images of what a source gives: they are alone, or one of its parts."""
    parts = made.leaves() if isinstance(made, Bundle) else (made,)
    return next(part for part in parts if isinstance(part, Pixels | SyntheticImages))


def values_of(images: Images) -> Tensor:
    """Return the values of images as they are sent, uint8 or float32 [n, C, H, W]."""
    return images.values if isinstance(images, Pixels) else images.images


def pixels_spec(run: Run, most: int) -> PixelsSpec:
    """Return the form of at most ``most`` images of a byte a value; ConfigError if the data set is text."""
    info = run.info
    known = run.image_shape, len(info.classes), most, info.mean, info.std
    return PixelsSpec(*known, run.config.wire.pictures)


def share_spec(run: Run) -> Spec:
    """Return the form of a share."""
    most, source = run.config.federation.max_examples, settings_of(run).made_by
    if source is not None and not source.as_bytes:
        constants = picture_constants(run)
        classes = len(run.info.classes)
        return SyntheticImagesSpec(run.image_shape, classes, most, False, 1, *constants)
    return pixels_spec(run, most)


def asked_spec(run: Run) -> TensorsSpec:
    """Return the form of a request for images."""
    most = run.config.federation.max_examples
    return TensorsSpec({SIZE: TensorSpec((), 1, most, torch.int64)})


def made_spec(images: Spec) -> BundleSpec:
    """Return the form of the reply: images of this form, or nothing while they are still being made."""
    return BundleSpec({IMAGES: images}, optional=frozenset({IMAGES}))


def replied_spec(run: Run, expects: Spec) -> Spec:
    """Return the form of a reply to the inner method: its own, and under ``diagnostics`` gradients in addition."""
    if not settings_of(run).diagnostics:
        return expects
    gradient = run.spec.only(run.spec.trained)
    return BundleSpec({INNER: expects, OWN: gradient, MIXED: gradient}, optional=frozenset({MIXED}))


def sent_spec(run: Run, takes: Spec) -> BundleSpec:
    """Return the form of an instruction for the inner method, with the site's share where it does not have it."""
    return BundleSpec({INNER: takes, SHARE: share_spec(run)}, optional=frozenset({SHARE}))


def weights_of(payload: Payload) -> Weights:
    """Return the weights in what the inner method sends; FederationError if it sends no weights."""
    found = payload.parts.get("weights") if isinstance(payload, Bundle) else payload
    if not isinstance(found, Weights):
        raise FederationError(
            "fedssyn.diagnostics measures gradients at the round's weights, which the inner method does not send: "
            "leave it out"
        )
    return found
