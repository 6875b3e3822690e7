"""Normalised images as the bytes of a picture, by a data set's public constants, and back."""

from __future__ import annotations

import torch
from torch import Tensor

LEVELS = 255
"""The byte of the brightest value."""

Constants = tuple[float, ...]


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
