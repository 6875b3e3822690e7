"""Labelled images that a device distilled: what FedDM sends instead of an update."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from common.wire.jpeg import Sheet, read_picture
from common.wire.jpeg_file import quality_of
from common.wire.levels import Constants, images_of, levels_of
from common.wire.values import CODECS, dequantise, quantise, require_shares


@dataclass(frozen=True)
class SyntheticImagesSpec:
    """What a receiver of synthetic images accepts.

    ``shape`` is (C, H, W); ``ipc`` is the most images of one class, which bounds the set and with it the server's
    memory; ``soft`` says whether labels are shares of the classes, none below 0, together 1; ``fewest`` is the least
    number of images of a class that is sent at all. An image with a soft label is of the class of its largest share,
    and all of a set may be of one: whoever softens may be wrong about some. ``mean`` and ``std``, a channel each in
    units of the brightest value, are the data set's public constants, without which none come as a JPEG picture.
    """

    shape: tuple[int, ...]
    classes: int
    ipc: int
    soft: bool = False
    fewest: int = 1
    mean: Constants = ()
    std: Constants = ()

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
        """The bytes of as many images as there may be, in float32 or as a picture, and of their labels."""
        label = 4 * self.classes if self.soft else 8
        images = 4 * self.max_images * math.prod(self.shape)
        if self.mean:
            images = max(images, Sheet.of(self.max_images, self.shape).max_bytes)
        return encoded_bytes(images, label * self.max_images)


@dataclass(frozen=True)
class SyntheticImages:
    """Images float32 [n, C, H, W] in the model's normalised space, with labels int64 [n] or float32 [n, classes].

    The codec ``uint8`` sends one byte a value between each channel's own extremes, which the header carries: the
    error of a value is at most half of (hi - lo) / 255. The codec ``jpeg:Q`` sends one JPEG picture of quality Q that
    shows all images as ``mean`` and ``std`` undo their normalisation: what is darker than black or brighter than white
    is cut, besides what the quality costs.
    """

    images: Tensor
    labels: Tensor
    codec: str = field(default="float32", compare=False)
    mean: Constants = field(default=(), compare=False)
    std: Constants = field(default=(), compare=False)

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
        if quality := quality_of(self.codec):
            pixels = self._picture(images, quality)
        elif self.codec == "uint8":
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

    def _picture(self, images: Tensor, quality: int) -> NDArray:
        if not self.mean:
            raise PayloadError(
                "these images cannot be sent as a JPEG picture without the data set's mean and std: make them with "
                "common.specs.images.sent_images"
            )
        levels = levels_of(images, self.mean, self.std)
        return Sheet.of(len(levels), tuple(levels.shape[1:])).write(levels, quality)

    def at(self, positions: Tensor) -> Self:
        """Return the images at ``positions``, int64 [m]."""
        return replace(self, images=self.images[positions], labels=self.labels[positions])

    @classmethod
    def decode(cls, arrays: Sequence[NDArray], spec: SyntheticImagesSpec) -> Self:
        """Rebuild the set; PayloadError if count, dtype, shape, labels, number or values are not as ``spec`` allows."""
        header, body = unframe(cls.kind, arrays)
        codec = _read_codec(header, spec)
        require_count(cls.kind, body, 2)
        pixels, labels = body
        if quality_of(codec):
            levels = _decode_picture(pixels, labels, spec)
            images = images_of(levels, spec.mean, spec.std)
            hard_or_soft = _decode_labels(labels, len(levels), spec)
            return cls(images, hard_or_soft, codec, spec.mean, spec.std)
        n = _check_images(pixels, codec, spec)
        if codec == "uint8":
            images = dequantise("a uint8 set of synthetic images", pixels.values(), header, axis=1)
        else:
            images = torch.from_numpy(np.array(pixels.values())).float()
        require_finite("the set of synthetic images", images)
        return cls(images, _decode_labels(labels, n, spec), codec, spec.mean, spec.std)


def _read_codec(header: Mapping[str, Any], spec: SyntheticImagesSpec) -> str:
    codec = header.get("codec")
    if spec.mean and isinstance(codec, str) and quality_of(codec):
        return codec
    return choose(header, "codec", CODECS)


def _decode_picture(picture: Arrival, labels: Arrival, spec: SyntheticImagesSpec) -> Tensor:
    """Return the images, uint8 [n, C, H, W], of a JPEG file that shows as many as there are labels."""
    n = labels.shape[0] if labels.ndim else 0
    _require_number(n, spec)
    return read_picture(picture, n, spec.shape)


def _check_images(pixels: Arrival, codec: str, spec: SyntheticImagesSpec) -> int:
    if pixels.dtype.name != codec or pixels.ndim != 4 or pixels.shape[1:] != spec.shape:
        raise PayloadError(
            f"the synthetic images are {describe(pixels)} where {codec} of shape (n, "
            f"{', '.join(map(str, spec.shape))}) was expected"
        )
    _require_number(pixels.shape[0], spec)
    return pixels.shape[0]


def _require_number(n: int, spec: SyntheticImagesSpec) -> None:
    if not 1 <= n <= spec.max_images:
        raise PayloadError(
            f"{n} synthetic images were sent where 1 to {spec.max_images} are allowed"
        )


def _decode_labels(labels: Arrival, n: int, spec: SyntheticImagesSpec) -> Tensor:
    if spec.soft:
        if labels.dtype != np.float32 or labels.shape != (n, spec.classes):
            raise PayloadError(
                f"the labels are {describe(labels)} where float32 of shape {(n, spec.classes)} was expected"
            )
        soft = torch.from_numpy(np.array(labels.values()))
        require_finite("the set of soft labels", soft)
        require_shares("the soft labels", soft)
        _require_numbers(torch.bincount(soft.argmax(1)), n, spec)
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
    _require_numbers(torch.bincount(hard), spec.ipc, spec)
    return hard


def _require_numbers(sent: Tensor, allowed: int, spec: SyntheticImagesSpec) -> None:
    """Refuse more than ``allowed`` images of a class, or fewer than ``fewest`` of one that is sent at all."""
    most, least = int(sent.max()), int(sent[sent > 0].min())
    if most > allowed:
        raise PayloadError(
            f"{most} images of one class were sent where at most {allowed} are allowed"
        )
    if least < spec.fewest:
        raise PayloadError(
            f"{least} images of one class were sent where at least {spec.fewest} are expected"
        )
