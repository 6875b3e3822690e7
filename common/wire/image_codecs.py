"""The names of the codecs of images; without torch, which the settings are read without."""

from __future__ import annotations

import re
from typing import Literal, get_args

Contrast = Literal["pixels", "stretched"]
"""How a method's images are looked at. ``pixels``: in the data's own range, clipped to it. ``stretched``: images whose
values are elsewhere, or in a small part of it, each from its own smallest value (black) to its largest (white)."""

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
