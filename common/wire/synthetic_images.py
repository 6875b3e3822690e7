"""Labelled images that a device distilled: what FedDM sends instead of an update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from common.errors import PayloadError
from common.wire.codec import (
    as_half,
    choose,
    describe,
    encoded_bytes,
    frame,
    require_count,
    require_finite,
    unframe,
)
from common.wire.compression import Arrival, NDArray
from common.wire.values import CODECS, dequantise, quantise


@dataclass(frozen=True)
class SyntheticImagesSpec:
    """What a receiver of synthetic images accepts.

    ``shape`` is (C, H, W); ``ipc`` is the most images of one class, which bounds the set and with it the server's
    memory; ``soft`` says whether labels are class probabilities; ``fewest`` is the least number of images of a class
    that is sent at all, where labels are classes.
    """

    shape: tuple[int, ...]
    classes: int
    ipc: int
    soft: bool = False
    fewest: int = 1

    @property
    def max_images(self) -> int:
        """The most images of the whole set."""
        return self.ipc * self.classes

    @property
    def payload(self) -> type[SyntheticImages]:
        """SyntheticImages."""
        return SyntheticImages

    @property
    def max_bytes(self) -> int:
        """The bytes of as many images as there may be, in float32, and of their labels."""
        label = 4 * self.classes if self.soft else 8
        return encoded_bytes(4 * self.max_images * math.prod(self.shape), label * self.max_images)


@dataclass(frozen=True)
class SyntheticImages:
    """Images float32 [n, C, H, W] in the model's normalised space, with labels int64 [n] or float32 [n, classes].

    The codec ``uint8`` sends one byte a value between each channel's own extremes, which the header carries: the
    error of a value is at most half of (hi - lo) / 255.
    """

    images: Tensor
    labels: Tensor
    codec: str = field(default="float32", compare=False)

    kind: ClassVar[str] = "synthetic-images"

    @property
    def examples(self) -> Tensor:
        """The images."""
        return self.images.detach()

    @property
    def floats(self) -> int:
        """The number of pixel values, as FedDM's Table 3 counts them."""
        return self.images.numel()

    def encode(self, compression: str = "none") -> list[NDArray]:
        """Return the header, the images and the labels, labels in the smallest integer type that holds them."""
        fields: dict[str, Any] = {"codec": self.codec}
        images = self.images.detach().cpu().contiguous()
        require_finite("the set of synthetic images", images)
        if self.codec == "uint8":
            fields["range"], pixels = quantise(images, axis=1)
        elif self.codec == "float16":
            pixels = as_half("a synthetic image", images).numpy()
        else:
            pixels = images.float().numpy()
        labels = self.labels.detach().cpu()
        if labels.is_floating_point():
            return frame(self.kind, fields, [pixels, labels.float().numpy()], compression)
        small = np.min_scalar_type(int(labels.max()) if len(labels) else 0)
        return frame(self.kind, fields, [pixels, labels.numpy().astype(small)], compression)

    @classmethod
    def decode(cls, arrays: Sequence[NDArray], spec: SyntheticImagesSpec) -> Self:
        """Rebuild the set.

        Raises
        ------
        PayloadError
            If count, dtype, shape, a label, the number of images or a value is not as ``spec`` allows.
        """
        header, body = unframe(cls.kind, arrays)
        codec = choose(header, "codec", CODECS)
        require_count(cls.kind, body, 2)
        pixels, labels = body
        n = _check_images(pixels, codec, spec)
        if codec == "uint8":
            images = dequantise("a uint8 set of synthetic images", pixels.values(), header, axis=1)
        else:
            images = torch.from_numpy(np.array(pixels.values())).float()
        require_finite("the set of synthetic images", images)
        return cls(images, _decode_labels(labels, n, spec), codec)


def _check_images(pixels: Arrival, codec: str, spec: SyntheticImagesSpec) -> int:
    if pixels.dtype.name != codec or pixels.ndim != 4 or pixels.shape[1:] != spec.shape:
        raise PayloadError(
            f"the synthetic images are {describe(pixels)} where {codec} of shape (n, "
            f"{', '.join(map(str, spec.shape))}) was expected"
        )
    n = pixels.shape[0]
    if not 1 <= n <= spec.max_images:
        raise PayloadError(
            f"{n} synthetic images were sent where 1 to {spec.max_images} are allowed"
        )
    return n


def _decode_labels(labels: Arrival, n: int, spec: SyntheticImagesSpec) -> Tensor:
    if spec.soft:
        if labels.dtype != np.float32 or labels.shape != (n, spec.classes):
            raise PayloadError(
                f"the labels are {describe(labels)} where float32 of shape {(n, spec.classes)} was expected"
            )
        soft = torch.from_numpy(np.array(labels.values()))
        require_finite("the set of soft labels", soft)
        return soft
    if labels.dtype.kind not in "iu" or labels.shape != (n,):
        raise PayloadError(
            f"the labels are {describe(labels)} where integers of shape {(n,)} were expected"
        )
    hard = torch.from_numpy(labels.values().astype(np.int64))
    low, high = int(hard.min()), int(hard.max())
    if low < 0 or high >= spec.classes:
        raise PayloadError(
            f"a label is {low if low < 0 else high} where 0 to {spec.classes - 1} are allowed"
        )
    sent = torch.bincount(hard)
    most, least = int(sent.max()), int(sent[sent > 0].min())
    if most > spec.ipc:
        raise PayloadError(
            f"{most} images of one class were sent where at most {spec.ipc} are allowed"
        )
    if least < spec.fewest:
        raise PayloadError(
            f"{least} images of one class were sent where at least {spec.fewest} are expected"
        )
    return hard
