"""Labelled images of one byte a value, as image files hold them: what a generator of images gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from common.errors import PayloadError
from common.wire.codec import choose, describe, encoded_bytes, frame, require_count, unframe
from common.wire.compression import NDArray
from common.wire.jpeg import Sheet, read_picture
from common.wire.jpeg_file import quality_of
from common.wire.levels import Constants, images_of
from common.wire.values import pack_classes, unpack_classes


@dataclass(frozen=True)
class PixelsSpec:
    """What a receiver of such images accepts: at most ``most`` of ``shape`` (C, H, W).

    ``mean`` and ``std``, a channel each in units of the brightest value, are the data set's public constants, by which
    a model's inputs are made of them. ``pictures`` says whether they may come as a JPEG picture.
    """

    shape: tuple[int, ...]
    classes: int
    most: int
    mean: Constants
    std: Constants
    pictures: bool = False

    @property
    def payload(self) -> type[Pixels]:
        """Pixels."""
        return Pixels

    @property
    def max_bytes(self) -> int:
        """The bytes of as many images as there may be, as they are or as a picture, and of their labels."""
        images = self.most * math.prod(self.shape)
        if self.pictures:
            images = max(images, Sheet.of(self.most, self.shape).max_bytes)
        return encoded_bytes(images, 8 * self.most)


@dataclass(frozen=True)
class Pixels:
    """Images uint8 [n, C, H, W] with labels int64 [n]; ``mean`` and ``std`` make a model's inputs of them.

    The codec is ``uint8``, which sends them as they are, or ``jpeg:Q``: one JPEG picture of quality Q that shows all.
    """

    values: Tensor
    labels: Tensor
    mean: Constants
    std: Constants
    codec: str = field(default="uint8", compare=False)

    kind: ClassVar[str] = "pixels"

    @property
    def examples(self) -> Tensor:
        """The images in the model's normalised space, float32."""
        return images_of(self.values.detach().cpu(), self.mean, self.std)

    @property
    def floats(self) -> int:
        """The number of pixel values."""
        return self.values.numel()

    def at(self, positions: Tensor) -> Pixels:
        """Return the images at ``positions``, int64 [m]."""
        return replace(self, values=self.values[positions], labels=self.labels[positions])

    def encode(self, compression: str = "none") -> list[NDArray]:
        """Return the header, the images and the labels, labels in the smallest integer type that holds them."""
        levels, labels = self.values.detach().cpu().contiguous(), pack_classes(self.labels)
        if quality := quality_of(self.codec):
            picture = Sheet.of(len(levels), tuple(levels.shape[1:])).write(levels, quality)
            return frame(self.kind, {"codec": self.codec}, [picture, labels], compression)
        return frame(self.kind, {}, [np.asarray(levels.numpy()), labels], compression)

    @classmethod
    def decode(cls, arrays: Sequence[NDArray], spec: PixelsSpec) -> Self:
        """Rebuild the images; PayloadError if count, dtype, shape, labels or number are not as ``spec`` allows."""
        header, body = unframe(cls.kind, arrays)
        require_count(cls.kind, body, 2)
        sent, labels = body
        codec = header.get("codec", "uint8")
        if spec.pictures and isinstance(codec, str) and quality_of(codec):
            n = labels.shape[0] if labels.ndim else 0
            _require_number(n, spec)
            values = read_picture(sent, n, spec.shape)
            classes = unpack_classes("the labels", labels, (n,), spec.classes)
            return cls(values, classes, spec.mean, spec.std, codec)
        choose({"codec": codec}, "codec", ["uint8"])
        if sent.dtype != np.uint8 or sent.ndim != 4 or sent.shape[1:] != spec.shape:
            raise PayloadError(
                f"the images are {describe(sent)} where uint8 of shape (n, {', '.join(map(str, spec.shape))}) was "
                "expected"
            )
        n = sent.shape[0]
        _require_number(n, spec)
        classes = unpack_classes("the labels", labels, (n,), spec.classes)
        values = torch.from_numpy(np.array(sent.values()))
        return cls(values, classes, spec.mean, spec.std)


def _require_number(n: int, spec: PixelsSpec) -> None:
    if not 1 <= n <= spec.most:
        raise PayloadError(f"{n} images were sent where 1 to {spec.most} are allowed")
