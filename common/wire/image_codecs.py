"""The table of image codecs: a new one is one file and one row. Nothing is imported until asked for."""

from __future__ import annotations

import importlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from common.errors import PayloadError

if TYPE_CHECKING:
    from torch import Tensor

    from common.wire.compression import AnyArray, CompressedArray

BYTES = "uint8"
"""How images that are bytes travel under a codec of numbers: as they are."""


class ImageCoder(ABC):
    """What encodes and decodes images, a tensor [n, ...]: uint8 [n, C, H, W] in a codec of pictures, else floats.

    Parameters
    ----------
    codec : str
        Such as ``jpeg:60``.
    name : str
        What an error calls the images.
    axis : int
        The dimension along which values have ranges of their own.
    """

    def __init__(self, codec: str, name: str, axis: int) -> None:
        self.codec, self.name, self.axis = codec, name, axis

    @staticmethod
    @abstractmethod
    def max_bytes(shape: tuple[int, ...]) -> int:
        """Return the most bytes that images of ``shape`` take; PayloadError if they cannot travel like this."""

    @abstractmethod
    def encode(self, images: Tensor) -> tuple[dict[str, Any], AnyArray]:
        """Return what the header says besides, and the array that travels; PayloadError if a value cannot."""

    @abstractmethod
    def decode(
        self, array: CompressedArray, shape: tuple[int, ...], header: Mapping[str, Any]
    ) -> Tensor:
        """Return images of ``shape``, float32 or uint8, on the CPU, or raise PayloadError."""


@dataclass(frozen=True)
class ImageCodec:
    """A row: a name, where its coder is, and what can travel in it.

    Parameters
    ----------
    name : str
        What ``wire.images`` is, or begins with where there is a parameter.
    path : str
        ``package.module:Class`` of its `ImageCoder`.
    meaning : str
        What the help says of it; empty for a name that says it all.
    parameter, pattern, allowed : str
        What follows the name and a colon: its name in capitals, a regular expression, and in words.
    pictures : bool
        Whether it codes pictures, of one byte a value: of normalised images by the data set's public constants, of no
        other numbers.
    rows : bool
        Whether rows of tables and series may travel in it.
    """

    name: str
    path: str
    meaning: str = ""
    parameter: str = ""
    pattern: str = ""
    allowed: str = ""
    pictures: bool = False
    rows: bool = False

    @property
    def written(self) -> str:
        """The codec as a user writes it."""
        return f"{self.name}:{self.parameter}" if self.parameter else self.name

    @property
    def regex(self) -> str:
        """What matches it."""
        return f"{self.name}:({self.pattern})" if self.parameter else self.name

    @property
    def coder(self) -> type[ImageCoder]:
        """The coder's class."""
        module, _, name = self.path.partition(":")
        found: type[ImageCoder] = getattr(importlib.import_module(module), name)
        return found


IMAGE_CODECS = {
    row.name: row
    for row in (
        ImageCodec("float32", "common.wire.codec:Floats", rows=True),
        ImageCodec("float16", "common.wire.codec:Floats", rows=True),
        ImageCodec(
            "uint8",
            "common.wire.codec:Levels",
            meaning="a byte a value between each channel's extremes",
        ),
        ImageCodec(
            "jpeg",
            "common.wire.jpeg:Jpeg",
            meaning="one JPEG picture a site, which cuts what is darker than black or brighter than white, and numbers "
            "are equal on one version of Pillow",
            parameter="QUALITY",
            pattern="[1-9]|[1-8][0-9]|9[0-5]",
            allowed="from 1 to 95",
            pictures=True,
        ),
    )
}
"""The codecs by name."""

Filter = Callable[[ImageCodec], bool]


def numbers(row: ImageCodec) -> bool:
    """Return whether numbers that no picture shows may travel in it."""
    return not row.pictures


def find(codec: object) -> ImageCodec | None:
    """Return the row of a codec such as ``jpeg:60``; None if there is none."""
    row = IMAGE_CODECS.get(codec.partition(":")[0]) if isinstance(codec, str) else None
    return row if row is not None and re.fullmatch(row.regex, str(codec)) else None


def is_picture(codec: str) -> bool:
    """Return whether images travel as a picture in a codec."""
    row = find(codec)
    return row is not None and row.pictures


def coder_of(codec: str, name: str = "the set of images", axis: int = 1) -> ImageCoder:
    """Return what encodes and decodes in ``codec``; PayloadError if there is none of that name."""
    row = find(codec)
    if row is None:
        raise PayloadError(f"images cannot travel in {codec:.40}, but in {names(lambda _: True)}")
    return row.coder(codec, name, axis)


def require(codec: object, allowed: Filter, *also: str) -> str:
    """Return what a header calls the codec; PayloadError unless it is one of the ``allowed``, or of ``also``."""
    row = find(codec)
    if codec not in also and (row is None or not allowed(row)):
        known = [*also, *(one.written for one in filter(allowed, IMAGE_CODECS.values()))]
        raise PayloadError(
            f"the header says codec {str(codec)[:40]!r}, allowed are {', '.join(known)}"
        )
    return str(codec)


def most_bytes(shape: tuple[int, ...], allowed: Filter) -> int:
    """Return the most bytes that images of ``shape`` take in one of the ``allowed`` codecs that can hold them."""
    sizes: list[int] = []
    problem: PayloadError | None = None
    for row in filter(allowed, IMAGE_CODECS.values()):
        try:
            sizes.append(row.coder.max_bytes(shape))
        except PayloadError as error:
            problem = error
    if problem is not None and not sizes:
        raise problem
    return max(sizes, default=0)


# ---- in words ------------------------------------------------------------------------------------
# The table as settings, their help and errors say it.


def pattern() -> str:
    """Return what matches every codec."""
    return rf"^({'|'.join(row.regex for row in IMAGE_CODECS.values())})$"


def meanings() -> str:
    """Say what each codec does whose name does not."""
    return "; ".join(
        f"{row.written}: {row.meaning}" for row in IMAGE_CODECS.values() if row.meaning
    )


def names(allowed: Filter) -> str:
    """Return the names of the ``allowed`` codecs, as a sentence lists them."""
    *others, last = (row.written for row in filter(allowed, IMAGE_CODECS.values()))
    return f"{', '.join(others)} or {last}" if others else last


def permitted() -> str:
    """Say which codecs there are, and what their parameters may be."""
    *others, last = (
        f"{row.written} with {row.parameter} {row.allowed}" if row.parameter else row.name
        for row in IMAGE_CODECS.values()
    )
    return f"{', '.join(others)}, or {last}"
