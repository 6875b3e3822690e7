"""How a method's images are to be looked at: as pixels, or each one stretched to its own extremes."""

from __future__ import annotations

from typing import Literal, get_args

Contrast = Literal["pixels", "stretched"]
"""``pixels``: images in the data's own range, clipped to it. ``stretched``: images whose values lie elsewhere, or in a
small part of it, each drawn from its own smallest value (black) to its own largest (white)."""

CONTRASTS: tuple[Contrast, ...] = get_args(Contrast)
