"""Differentiable siamese augmentation (DSA, Zhao and Bilen 2021).

Each iteration draws one of the strategy's transforms and its strength, and the complete batch, real
and synthetic alike, goes through the same transform; gradients reach the synthetic pixels through
it. Strengths are those of the authors' code. Draws are plain numbers, made for all iterations
before the first, so that applying one copies nothing between host and device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

BRIGHTNESS, SATURATION, CONTRAST = 1.0, 2.0, 0.5
CROP, CUTOUT, FLIP, SCALE, ROTATE = 0.125, 0.5, 0.5, 1.2, 15.0


@dataclass(frozen=True)
class Draw:
    """One transform by name, and the uniform numbers in [0, 1) that set its strength."""

    transform: str
    uniforms: tuple[float, ...]


def parse(strategy: str) -> tuple[str, ...]:
    """Return the transforms that "color_crop_flip" or the like names, of "" none."""
    return tuple(strategy.split("_")) if strategy else ()


def draws(
    transforms: Sequence[str], count: int, generator: torch.Generator
) -> Sequence[Draw | None]:
    """Return ``count`` draws, each of one of ``transforms`` with equal chance; without transforms nothing is drawn."""
    if not transforms:
        return [None] * count
    numbers = torch.rand(
        count, 4, generator=generator, device=generator.device, dtype=torch.double
    ).tolist()
    return [
        Draw(transforms[int(choice * len(transforms))], tuple(uniforms))
        for choice, *uniforms in numbers
    ]


def apply(images: Tensor, draw: Draw | None) -> Tensor:
    """Return ``images`` [n, C, H, W] after the drawn transform, differentiably; as they are where none was drawn.

    What comes in from outside the image is 0, the mean colour of normalised images.
    """
    return images if draw is None else TRANSFORMS[draw.transform](images, draw.uniforms)


def color(images: Tensor, brightness: float, saturation: float, contrast: float) -> Tensor:
    """Shift by ``brightness``, then stretch around two means.

    ``saturation`` stretches around each pixel's grey, ``contrast`` around the image's mean.
    """
    images = images + brightness
    grey = images.mean(1, keepdim=True)
    images = (images - grey) * saturation + grey
    mean = images.mean((1, 2, 3), keepdim=True)
    return (images - mean) * contrast + mean


def shift(images: Tensor, down: int, right: int) -> Tensor:
    """Move the content by integer pixels (DSA's crop: a window moved over the padded image)."""
    height, width = images.shape[-2:]
    padded = F.pad(images, (abs(right), abs(right), abs(down), abs(down)))
    top, left = abs(down) - down, abs(right) - right
    return padded[..., top : top + height, left : left + width]


def cutout(images: Tensor, middle: tuple[int, int], sides: tuple[int, int]) -> Tensor:
    """Blank the rectangle of ``sides`` around ``middle`` (row, column) where it meets the image."""
    mask = images.new_ones(images.shape[-2:])
    (top, height), (left, width) = ((m - s // 2, s) for m, s in zip(middle, sides, strict=True))
    mask[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)] = 0
    return images * mask


def warp(images: Tensor, matrix: tuple[tuple[float, float], tuple[float, float]]) -> Tensor:
    """Sample the images bilinearly at ``matrix`` times each pixel's position.

    Positions are (x, y) from the centre, the image's edges at -1 and 1.
    """
    height, width = images.shape[-2:]
    y, x = (
        (2 * torch.arange(side, device=images.device, dtype=images.dtype) + 1) / side - 1
        for side in (height, width)
    )
    (xx, xy), (yx, yy) = matrix
    column, row = x.view(1, -1), y.view(-1, 1)
    grid = torch.stack((xx * column + xy * row, yx * column + yy * row), -1)
    return F.grid_sample(
        images, grid.expand(len(images), -1, -1, -1), padding_mode="zeros", align_corners=False
    )


def _color(images: Tensor, u: Sequence[float]) -> Tensor:
    return color(images, (u[0] - 0.5) * BRIGHTNESS, u[1] * SATURATION, u[2] + CONTRAST)


def _crop(images: Tensor, u: Sequence[float]) -> Tensor:
    down, right = (
        int(number * (2 * reach + 1)) - reach
        for number, reach in zip(u, (int(s * CROP + 0.5) for s in images.shape[-2:]), strict=False)
    )
    return shift(images, down, right)


def _cutout(images: Tensor, u: Sequence[float]) -> Tensor:
    height, width = images.shape[-2:]
    sides = int(height * CUTOUT + 0.5), int(width * CUTOUT + 0.5)
    middle = (int(u[0] * (height + 1 - sides[0] % 2)), int(u[1] * (width + 1 - sides[1] % 2)))
    return cutout(images, middle, sides)


def _flip(images: Tensor, u: Sequence[float]) -> Tensor:
    return images.flip(-1) if u[0] < FLIP else images


def _scale(images: Tensor, u: Sequence[float]) -> Tensor:
    sx, sy = (1 / SCALE + number * (SCALE - 1 / SCALE) for number in u[:2])
    return warp(images, ((sx, 0.0), (0.0, sy)))


def _rotate(images: Tensor, u: Sequence[float]) -> Tensor:
    angle = (2 * u[0] - 1) * math.radians(ROTATE)
    cos, sin = math.cos(angle), math.sin(angle)
    return warp(images, ((cos, -sin), (sin, cos)))


TRANSFORMS: dict[str, Callable[[Tensor, Sequence[float]], Tensor]] = {
    "color": _color,
    "crop": _crop,
    "cutout": _cutout,
    "flip": _flip,
    "scale": _scale,
    "rotate": _rotate,
}
"""The six transforms by the names that a strategy joins with "_"."""
