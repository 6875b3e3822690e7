"""Labelled images of one byte a value, as image files hold them: what a generator of images gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from common.errors import PayloadError
from common.wire.codec import describe, encoded_bytes, frame, require_count, unframe
from common.wire.compression import NDArray
from common.wire.levels import images_of
from common.wire.values import pack_classes, unpack_classes


@dataclass(frozen=True)
class PixelsSpec:
    """What a receiver of such images accepts: at most ``most`` of ``shape`` (C, H, W).

    ``mean`` and ``std``, a channel each in units of the brightest value, are the data set's public constants, by which
    a model's inputs are made of them.
    """

    shape: tuple[int, ...]
    classes: int
    most: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def payload(self) -> type[Pixels]:
        """Pixels."""
        return Pixels

    @property
    def max_bytes(self) -> int:
        """The bytes of as many images as there may be, and of their labels."""
        return encoded_bytes(self.most * math.prod(self.shape), 8 * self.most)


@dataclass(frozen=True)
class Pixels:
    """Images uint8 [n, C, H, W] with labels int64 [n]; ``mean`` and ``std`` make a model's inputs of them."""

    values: Tensor
    labels: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]

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
        return Pixels(self.values[positions], self.labels[positions], self.mean, self.std)

    def encode(self, compression: str = "none") -> list[NDArray]:
        """Return the header, the images and the labels, labels in the smallest integer type that holds them."""
        values = np.asarray(self.values.detach().cpu().contiguous().numpy())
        return frame(self.kind, {}, [values, pack_classes(self.labels)], compression)

    @classmethod
    def decode(cls, arrays: Sequence[NDArray], spec: PixelsSpec) -> Self:
        """Rebuild the images.

        Raises
        ------
        PayloadError
            If count, dtype, shape, a label or the number of images is not as ``spec`` allows.
        """
        _, body = unframe(cls.kind, arrays)
        require_count(cls.kind, body, 2)
        sent, labels = body
        if sent.dtype != np.uint8 or sent.ndim != 4 or sent.shape[1:] != spec.shape:
            raise PayloadError(
                f"the images are {describe(sent)} where uint8 of shape (n, {', '.join(map(str, spec.shape))}) was "
                "expected"
            )
        n = sent.shape[0]
        if not 1 <= n <= spec.most:
            raise PayloadError(f"{n} images were sent where 1 to {spec.most} are allowed")
        classes = unpack_classes("the labels", labels, (n,), spec.classes)
        values = torch.from_numpy(np.array(sent.values()))
        return cls(values, classes, spec.mean, spec.std)
