"""How images travel: as numbers of a dtype, in levels of a byte, or as one JPEG picture; torch comes with the first."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

from common.errors import PayloadError

if TYPE_CHECKING:
    from torch import Tensor

    from common.wire.codec import AnyArray

Contrast = Literal["pixels", "stretched"]
"""How a method's images are looked at. ``pixels``: in the data's own range, clipped to it. ``stretched``: images whose
values lie elsewhere, or in a small part of it, each from its own smallest value (black) to its largest (white)."""

CONTRASTS: tuple[Contrast, ...] = get_args(Contrast)

BYTES = "uint8"
"""A byte a value between each channel's extremes; images that are bytes travel under it as they are."""

ROWS = ("float32", "float16")
"""What rows of tables and series may travel in."""

NUMBERS = (*ROWS, BYTES)
"""What numbers may travel in that no picture shows."""

PICTURE = "jpeg:QUALITY"
"""One JPEG picture: of normalised images by the data set's public constants, of no other numbers."""

PATTERN = r"jpeg:([1-9]|[1-8][0-9]|9[0-5])"


def is_picture(codec: object) -> bool:
    """Return whether images travel as a picture in a codec."""
    return isinstance(codec, str) and re.fullmatch(PATTERN, codec) is not None


def require(codec: object, numbers: tuple[str, ...] = NUMBERS, *, pictures: bool = False) -> str:
    """Return what a header calls the codec; PayloadError unless it is one of ``numbers``, or one of pictures."""
    if codec not in numbers and not (pictures and is_picture(codec)):
        known = [*numbers, PICTURE] if pictures else numbers
        raise PayloadError(
            f"the header says codec {str(codec)[:40]!r}, allowed are {', '.join(known)}"
        )
    return str(codec)


def most_bytes(shape: tuple[int, ...], *, numbers: bool = True, pictures: bool = False) -> int:
    """Return the most bytes of images of ``shape``; PayloadError if they travel as pictures alone, and are none."""
    size = 4 * math.prod(shape) if numbers else 0
    if not pictures:
        return size
    from common.wire.jpeg import Sheet

    try:
        return max(size, Sheet.of(shape[0], shape[1:]).max_bytes)
    except PayloadError:
        if not numbers:
            raise
        return size


def encoded(
    codec: str, images: Tensor, name: str = "the set of images", axis: int = 1
) -> tuple[dict[str, Any], AnyArray]:
    """Return what the header says of images besides, and the array that travels; PayloadError if a value cannot.

    Images are uint8 [n, C, H, W] in a codec of pictures, else floats [n, ...]; ``axis`` is the dimension along which
    levels have ranges of their own.
    """
    from common.wire.codec import pack, pack_levels
    from common.wire.jpeg import Sheet

    if is_picture(codec):
        sheet = Sheet.of(len(images), tuple(images.shape[1:]))
        return {}, sheet.write(images, int(codec.partition(":")[2]))
    return pack_levels(name, images, axis) if codec == BYTES else ({}, pack(name, images, codec))


def decoded(
    codec: str,
    array: AnyArray,
    shape: tuple[int, ...],
    header: Mapping[str, Any],
    name: str = "the set of images",
    axis: int = 1,
) -> Tensor:
    """Return images of ``shape``, float32 or uint8, on the CPU; PayloadError unless ``array`` is what it takes."""
    from common.wire.codec import unpack, unpack_levels
    from common.wire.jpeg import Sheet

    if is_picture(codec):
        return Sheet.of(shape[0], shape[1:]).read(array, name)
    if codec == BYTES:
        return unpack_levels(name, array, shape, header.get("range"), axis)
    return unpack(name, array, shape, codec)
