"""Labelled images as they travel: distilled ones as numbers or pictures, generated ones a byte a value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from common.errors import PayloadError
from common.wire.codec import (
    AnyArray,
    describe,
    encoded_bytes,
    frame,
    pack_classes,
    require_count,
    require_finite,
    require_shape,
    require_shares,
    unframe,
    unpack_classes,
)
from common.wire.image_codecs import BYTES, decoded, encoded, is_picture, most_bytes, require

Constants = tuple[float, ...]

IMAGES = "the set of synthetic images"


@dataclass(frozen=True)
class SyntheticImages:
    """Images float32 [n, C, H, W] in the model's normalised space, with labels int64 [n] or float32 [n, classes].

    The codec is ``wire.images``'. One of pictures shows the images as ``mean`` and ``std`` undo their
    normalisation: what is darker than black or brighter than white is cut, besides what the codec costs.
    """

    images: Tensor
    labels: Tensor
    codec: str = field(default="float32", compare=False)
    mean: Constants = field(default=(), compare=False)
    std: Constants = field(default=(), compare=False)

    kind: ClassVar[str] = "synthetic-images"
    setting: ClassVar[tuple[str, str]] = ("images", "images")

    @property
    def examples(self) -> Tensor:
        """The images."""
        return self.images.detach()

    @property
    def floats(self) -> int:
        """The number of pixel values, as FedDM's Table 3 counts them."""
        return self.images.numel()

    def encode(self) -> list[AnyArray]:
        """Return the header, the images and the labels, labels in the smallest integer type that holds them."""
        images = self.images.detach().cpu().contiguous()
        require_finite(IMAGES, images)
        sent = self._levels(images) if is_picture(self.codec) else images
        fields, pixels = encoded(self.codec, sent, IMAGES)
        labels = self.labels.detach().cpu()
        packed = labels.float().numpy() if labels.is_floating_point() else pack_classes(labels)
        return frame(self.kind, {"codec": self.codec, **fields}, [pixels, packed])

    def _levels(self, images: Tensor) -> Tensor:
        if not self.mean:
            raise PayloadError(
                f"these images cannot be sent in {self.codec} without the data set's mean and std: make them with "
                "common.specs.images.sent_images"
            )
        return levels_of(images, self.mean, self.std)

    def at(self, positions: Tensor) -> Self:
        """Return the images at ``positions``, int64 [m]."""
        return replace(self, images=self.images[positions], labels=self.labels[positions])

    @classmethod
    def decode(cls, arrays: Sequence[AnyArray], spec: SyntheticImagesSpec) -> Self:
        """Rebuild the set; PayloadError if count, dtype, shape, labels, number or values are not as ``spec`` allows."""
        header, body = unframe(cls.kind, arrays)
        codec = require(header.get("codec"), pictures=bool(spec.mean))
        require_count(cls.kind, body, 2)
        n = _number_of("synthetic images", spec.max_images, *body)
        images = decoded(codec, body[0], (n, *spec.shape), header, IMAGES)
        if is_picture(codec):
            images = images_of(images, spec.mean, spec.std)
        return cls(images, _decode_labels(body[1], n, spec), codec, spec.mean, spec.std)


@dataclass(frozen=True)
class SyntheticImagesSpec:
    """What a receiver of synthetic images accepts.

    ``shape`` is (C, H, W); ``ipc`` is the most images of one class, which bounds the set and with it the server's
    memory; ``soft`` says whether labels are shares of the classes, none below 0, together 1; ``fewest`` is the least
    number of images of a class that is sent at all. An image with a soft label is of the class of its largest share,
    and all of a set may be of one: whoever softens may be wrong about some. ``mean`` and ``std``, a channel each in
    units of the brightest value, are the data set's public constants, without which none come as a picture.
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

    payload: ClassVar[type[SyntheticImages]] = SyntheticImages

    @property
    def max_bytes(self) -> int:
        """The bytes of as many images as there may be, in the codec that takes most, and of their labels."""
        label = 4 * self.classes if self.soft else 8
        images = most_bytes((self.max_images, *self.shape), pictures=bool(self.mean))
        return encoded_bytes(images, label * self.max_images)


def _number_of(name: str, most: int, images: AnyArray, labels: AnyArray) -> int:
    """Return how many images came, of an array or of a file with as many labels; PayloadError unless 1 to ``most``."""
    counted = images if images.ndim > 1 else labels
    n = counted.shape[0] if counted.ndim else 0
    if not 1 <= n <= most:
        raise PayloadError(f"{n} {name} were sent where 1 to {most} are allowed")
    return n


def _decode_labels(labels: AnyArray, n: int, spec: SyntheticImagesSpec) -> Tensor:
    if spec.soft:
        if labels.dtype != np.float32 or labels.shape != (n, spec.classes):
            raise PayloadError(
                f"the labels are {describe(labels)} where float32 of shape {(n, spec.classes)} was expected"
            )
        soft = torch.from_numpy(np.array(labels))
        require_finite("the set of soft labels", soft)
        require_shares("the soft labels", soft)
        _require_numbers(torch.bincount(soft.argmax(1)), n, spec)
        return soft
    hard = unpack_classes("the labels", labels, (n,), spec.classes)
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


# ---- pixels --------------------------------------------------------------------------------------
# Labelled images of one byte a value, as image files hold them: what a generator of images gives.


@dataclass(frozen=True)
class Pixels:
    """Images uint8 [n, C, H, W] with labels int64 [n]; ``mean`` and ``std`` make a model's inputs of them.

    The codec is ``uint8``, which sends them as they are, or one of pictures.
    """

    values: Tensor
    labels: Tensor
    mean: Constants
    std: Constants
    codec: str = field(default=BYTES, compare=False)

    kind: ClassVar[str] = "pixels"
    setting: ClassVar[tuple[str, str]] = ("images", "pixels")

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

    def encode(self) -> list[AnyArray]:
        """Return the header, the images and the labels, labels in the smallest integer type that holds them."""
        levels, labels = self.values.detach().cpu().contiguous(), pack_classes(self.labels)
        if self.codec == BYTES:
            return frame(self.kind, {}, [np.asarray(levels.numpy()), labels])
        fields, picture = encoded(self.codec, levels)
        return frame(self.kind, {"codec": self.codec, **fields}, [picture, labels])

    @classmethod
    def decode(cls, arrays: Sequence[AnyArray], spec: PixelsSpec) -> Self:
        """Rebuild the images; PayloadError if count, dtype, shape, labels or number are not as ``spec`` allows."""
        header, body = unframe(cls.kind, arrays)
        require_count(cls.kind, body, 2)
        codec = require(header.get("codec", BYTES), (BYTES,), pictures=spec.pictures)
        n = _number_of("images", spec.most, *body)
        values = _pixels_in(codec, body[0], (n, *spec.shape), header)
        classes = unpack_classes("the labels", body[1], (n,), spec.classes)
        return cls(values, classes, spec.mean, spec.std, codec)


@dataclass(frozen=True)
class PixelsSpec:
    """What a receiver of such images accepts: at most ``most`` of ``shape`` (C, H, W).

    ``mean`` and ``std``, a channel each in units of the brightest value, are the data set's public constants, by which
    a model's inputs are made of them. ``pictures`` says whether they may come in a codec of pictures.
    """

    shape: tuple[int, ...]
    classes: int
    most: int
    mean: Constants
    std: Constants
    pictures: bool = False

    payload: ClassVar[type[Pixels]] = Pixels

    @property
    def max_bytes(self) -> int:
        """The bytes of as many images as there may be, as they are or as a picture, and of their labels."""
        images = (self.most, *self.shape)
        picture = most_bytes(images, numbers=False, pictures=self.pictures)
        return encoded_bytes(max(math.prod(images), picture), 8 * self.most)


def _pixels_in(
    codec: str, sent: AnyArray, shape: tuple[int, ...], header: Mapping[str, Any]
) -> Tensor:
    if codec != BYTES:
        return decoded(codec, sent, shape, header)
    require_shape("the set of images", sent, shape, BYTES)
    return torch.from_numpy(np.array(sent))


# ---- levels --------------------------------------------------------------------------------------
# Normalised images as the bytes of a picture, by a data set's public constants, and back.

LEVELS = 255
"""The byte of the brightest value."""


def levels_of(images: Tensor, mean: Constants, std: Constants) -> Tensor:
    """Return normalised images, float [n, C, H, W], as uint8; what is darker than black or brighter than white is cut.

    ``mean`` and ``std``, a channel each, are in units of the brightest value.
    """
    shown = images.float() * _channels(std) + _channels(mean)
    return (shown.clamp(0, 1) * LEVELS).round().to(torch.uint8)


def images_of(levels: Tensor, mean: Constants, std: Constants) -> Tensor:
    """Return what ``levels_of`` cuts and rounds, float32 [n, C, H, W]."""
    return (levels.float() / LEVELS - _channels(mean)) / _channels(std)


def _channels(constants: Constants) -> Tensor:
    return torch.tensor(constants)[:, None, None]


# ---- copies --------------------------------------------------------------------------------------
# How many of the images that were sent equal, or nearly equal, a real one of the site that sent them.

EQUAL = 1e-4
"""Up to this distance, the root of the mean squared difference of values from 0 to 1, two images are equal."""

NEAR = 0.05
"""Up to this one they nearly are: a photograph with noise on it that hides nobody."""

FIGURES = {"images": "images-sent", "equal": "images-equal", "near": "images-near"}
"""The names under which a site reports each number."""


@dataclass(frozen=True)
class Copies:
    """A count: ``images`` sent, ``equal`` to a real one of the sender's, and ``near`` to one but not equal."""

    images: int
    equal: int
    near: int

    def figures(self) -> dict[str, float]:
        """Return what a site reports beside its upload."""
        return {FIGURES[name]: float(value) for name, value in asdict(self).items()}

    @classmethod
    def told(cls, by_site: Iterable[Mapping[str, float]]) -> Self | None:
        """Return the sum of what sites reported beside their uploads; None if none of them counted.

        A site's figures that are no counts, or do not go together, are left out: they are the site's word.
        """
        rows = ([figures.get(key) for key in FIGURES.values()] for figures in by_site)
        return cls._sum(rows)

    @classmethod
    def recorded(cls, lines: Iterable[Mapping[str, Any]]) -> Self | None:
        """Return the sum over the rounds' lines of a record; None if no round has a count."""
        kept = (line.get("copies") for line in lines)
        rows = ([row.get(name) for name in FIGURES] for row in kept if isinstance(row, Mapping))
        return cls._sum(rows)

    @classmethod
    def _sum(cls, rows: Iterable[list[Any]]) -> Self | None:
        sane = [row for row in rows if _is_count(row)]
        if not sane:
            return None
        return cls(*(int(sum(column)) for column in zip(*sane, strict=True)))

    @property
    def found(self) -> bool:
        """Whether there is a copy, or nearly one."""
        return self.equal + self.near > 0

    def sentence(self) -> str:
        """Say it."""
        if not self.found:
            return f"Copies: 0 of {self.images:,} sent images are within {NEAR:g} RMS of a real one (self-reported)."
        return (
            f"Copies: {self.equal:,} of {self.images:,} sent images equal a real one of their site (within {EQUAL:g} "
            f"RMS), {self.near:,} more are within {NEAR:g} RMS (self-reported)."
        )


def _is_count(row: list[Any]) -> bool:
    numbers = [v for v in row if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < len(FIGURES) or any(not 0 <= v <= 1e9 or v != int(v) for v in numbers):
        return False
    images, equal, near = numbers
    return bool(equal + near <= images)
