"""The names of the codecs of images; without torch, which the settings are read without."""

from __future__ import annotations

import re
from typing import Literal, get_args

Contrast = Literal["pixels", "stretched"]
"""How a method's images are looked at. ``pixels``: in the data's own range, clipped to it. ``stretched``: images whose
values are elsewhere, or in a small part of it, each from its own smallest value (black) to its largest (white)."""

CONTRASTS: tuple[Contrast, ...] = get_args(Contrast)

BYTES = "uint8"
"""A byte a value between each channel's extremes; images that are bytes are sent unchanged."""

ROWS = ("float32", "float16")
"""The codecs of rows of tables and series."""

NUMBERS = (*ROWS, BYTES)
"""The codecs of numbers that are not pictures."""

PICTURE = "jpeg:QUALITY"
"""One JPEG picture: of normalised images by the data set's public constants, of no other numbers."""

PATTERN = r"jpeg:([1-9]|[1-8][0-9]|9[0-5])"


def is_picture(codec: object) -> bool:
    """Return whether a codec sends images as a picture."""
    return isinstance(codec, str) and re.fullmatch(PATTERN, codec) is not None
