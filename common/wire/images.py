"""Labelled images on the wire: distilled ones as numbers or pictures, generated ones a byte a value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from common.errors import PayloadError
from common.wire.coders import (
    Classes,
    Coder,
    Constants,
    Header,
    image_coder,
    images_of,
    plain,
    require_shares,
)
from common.wire.form import Form, Found, TensorSpec, framed
from common.wire.image_codecs import BYTES, NUMBERS, PICTURE, is_picture
from common.wire.npy import AnyArray

IMAGES, LABELS = "the set of images", "the set of labels"


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
        if is_picture(self.codec) and not self.mean:
            raise PayloadError(
                f"these images cannot be sent in {self.codec} without the data set's mean and std: make them with "
                "common.specs.images.sent_images"
            )
        soft = self.labels.is_floating_point()
        each: list[tuple[str, Tensor, Coder]] = [
            (IMAGES, self.images, image_coder(self.codec, 1, self.mean, self.std)),
            (LABELS, self.labels, plain(torch.float32, "float32") if soft else Classes()),
        ]
        return framed(self.kind, {"codec": self.codec}, each)

    def showing(self, examples: Tensor) -> Self:
        """Return the same of other examples, of the same shape."""
        return replace(self, images=examples)


@dataclass(frozen=True)
class SyntheticImagesSpec(Form[SyntheticImages]):
    """The form of synthetic images that a receiver accepts.

    ``shape`` is (C, H, W); ``ipc`` is the most images of one class, which bounds the set and with it the server's
    memory; ``soft``: whether labels are shares of the classes, none below 0, together 1; ``fewest`` is the least
    number of images of a class that is sent at all. An image with a soft label is of the class of its largest share,
    and all of a set may be of one: softened labels may be wrong for some. ``mean`` and ``std``, a channel each in
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
        """The most images of the full set."""
        return self.ipc * self.classes

    kind = SyntheticImages.kind

    @property
    def codecs(self) -> tuple[str, ...]:
        """The codecs of the images."""
        return (*NUMBERS, PICTURE) if self.mean else NUMBERS

    def arrays(self, codec: str) -> Mapping[str, TensorSpec]:
        """Return images, and as many labels."""
        n, coder = self.max_images, image_coder(codec, 1, self.mean, self.std)
        hard = TensorSpec((n,), 0, self.classes - 1, torch.int64, varies=True, coder=Classes())
        soft = TensorSpec((n, self.classes), varies=True)
        images = TensorSpec((n, *self.shape), varies=True, coder=coder)
        return {IMAGES: images, LABELS: soft if self.soft else hard}

    def payload_of(self, tensors: Found, codec: str, header: Header) -> SyntheticImages:
        """Return the set; PayloadError unless labels are of classes, and there are not too many or few of one."""
        images, labels = tensors[IMAGES], tensors[LABELS]
        if self.soft:
            require_shares("the soft labels", labels)
        most = len(labels) if self.soft else self.ipc
        _require_numbers(labels.argmax(1) if self.soft else labels, most, self.fewest)
        return SyntheticImages(images, labels, codec, self.mean, self.std)


def _require_numbers(classes: Tensor, allowed: int, fewest: int) -> None:
    """Refuse more than ``allowed`` images of a class, or fewer than ``fewest`` of one that is sent at all."""
    if not len(classes):
        raise PayloadError("no image came where at least one was expected")
    sent = torch.bincount(classes)
    most, least = int(sent.max()), int(sent[sent > 0].min())
    if most > allowed:
        raise PayloadError(
            f"{most} images of one class were sent where at most {allowed} are allowed"
        )
    if least < fewest:
        raise PayloadError(
            f"{least} images of one class were sent where at least {fewest} are expected"
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

    def encode(self) -> list[AnyArray]:
        """Return the header, the images and the labels, labels in the smallest integer type that holds them."""
        pixels = IMAGES, self.values, _byte_coder(self.codec)
        return framed(self.kind, {"codec": self.codec}, [pixels, (LABELS, self.labels, Classes())])


@dataclass(frozen=True)
class PixelsSpec(Form[Pixels]):
    """The form of images that a receiver accepts: at most ``most`` of ``shape`` (C, H, W).

    ``mean`` and ``std``, a channel each in units of the brightest value, are the data set's public constants, by which
    a model's inputs are made of them. ``pictures``: whether they may come in a codec of pictures.
    """

    shape: tuple[int, ...]
    classes: int
    most: int
    mean: Constants
    std: Constants
    pictures: bool = False

    kind = Pixels.kind

    @property
    def codecs(self) -> tuple[str, ...]:
        """The codecs of the images."""
        return (BYTES, PICTURE) if self.pictures else (BYTES,)

    def arrays(self, codec: str) -> Mapping[str, TensorSpec]:
        """Return images, and as many labels."""
        images = TensorSpec(
            (self.most, *self.shape), dtype=torch.uint8, varies=True, coder=_byte_coder(codec)
        )
        labels = TensorSpec(
            (self.most,), 0, self.classes - 1, torch.int64, varies=True, coder=Classes()
        )
        return {IMAGES: images, LABELS: labels}

    def payload_of(self, tensors: Found, codec: str, header: Header) -> Pixels:
        """Return the images with their labels; PayloadError if they are missing."""
        _require_numbers(tensors[LABELS], self.most, 1)
        return Pixels(tensors[IMAGES], tensors[LABELS], self.mean, self.std, codec)


def _byte_coder(codec: str) -> Coder:
    """Return the coder of images that are bytes: as they are, or as a picture."""
    return plain(torch.uint8) if codec == BYTES else image_coder(codec)


# ---- copies --------------------------------------------------------------------------------------
# How many of the images that were sent equal, or nearly equal, a real one of the site that sent them.

EQUAL = 1e-4
"""Up to this distance, the root of the mean squared difference of values from 0 to 1, two images are equal."""

NEAR = 0.05
"""Up to this one they nearly are: a photograph whose noise does not hide the person."""

FIGURES = {"images": "images-sent", "equal": "images-equal", "near": "images-near"}
"""The names under which a site reports each number."""


@dataclass(frozen=True)
class Copies:
    """A count: ``images`` sent, ``equal`` to a real one of the sender's, and ``near`` to one but not equal."""

    images: int
    equal: int
    near: int

    def figures(self) -> dict[str, float]:
        """Return the figures that a site reports with its upload."""
        return {FIGURES[name]: float(value) for name, value in asdict(self).items()}

    @classmethod
    def reported(cls, by_site: Iterable[Mapping[str, float]]) -> Self | None:
        """Return the sum of what sites reported with their uploads; None if none of them counted.

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
        """Describe the counts in words."""
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
