"""dSprites by formula: squares, ellipses and hearts, and files of the published form with a part of the grid."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

NAMES = ("color", "shape", "scale", "orientation", "posX", "posY")
#: the published grid: the number of values of each factor
SIZES = (1, 3, 6, 40, 32, 32)
SQUARE, ELLIPSE, HEART = range(3)

#: at scale 1, in sides of the image: half the square's side, the ellipse's semi-axes, the heart's unit
HALF_SIDE, SEMI_AXES, UNIT = 0.125, (0.18, 0.09), 0.13
#: how far from the border a centre stays, so that every sprite is whole in every place
MARGIN = 0.2

_VALUES = 1 << 22


def values() -> list[NDArray[np.float64]]:
    """Return the published values of each factor, in the order of ``NAMES``."""
    return [
        np.ones(1),
        np.arange(1.0, 4.0),
        np.linspace(0.5, 1, 6),
        np.linspace(0, 2 * np.pi, 40),
        np.linspace(0, 1, 32),
        np.linspace(0, 1, 32),
    ]


def sprites(
    shape: ArrayLike,
    scale: ArrayLike,
    orientation: ArrayLike,
    x: ArrayLike,
    y: ArrayLike,
    side: int = 64,
) -> NDArray[np.uint8]:
    """Return white sprites on black: a pixel is 1 where its middle lies in the shape.

    Parameters
    ----------
    shape : array_like
        0 for a square, 1 for an ellipse, 2 for a heart; int [n], or one for all, as with the others.
    scale : array_like
        The size, 0.5 to 1.
    orientation : array_like
        The angle by which it is turned, in radians.
    x, y : array_like
        Where its middle lies, 0 (left, top) to 1 (right, bottom).
    side : int
        Of the images, in pixels.

    Returns
    -------
    ndarray
        uint8 [n, side, side] of 0 and 1.
    """
    factors = np.broadcast_arrays(*map(np.atleast_1d, (shape, scale, orientation, x, y)))
    images = np.empty((len(factors[0]), side, side), np.uint8)
    step = max(1, _VALUES // side**2)
    for at in range(0, len(images), step):
        images[at : at + step] = _drawn(*(f[at : at + step, None, None] for f in factors), side)
    return images


def _drawn(
    shape: NDArray[np.int64],
    scale: NDArray[np.float64],
    orientation: NDArray[np.float64],
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    side: int,
) -> NDArray[np.bool_]:
    middle = (np.arange(side) + 0.5) / side
    right = (middle[None, None, :] - (MARGIN + (1 - 2 * MARGIN) * x)) / scale
    down = (middle[None, :, None] - (MARGIN + (1 - 2 * MARGIN) * y)) / scale
    cos, sin = np.cos(orientation), np.sin(orientation)
    u, v = (
        cos * right - sin * down,
        -sin * right - cos * down,
    )  # in the sprite's own axes, v upwards
    square = np.maximum(abs(u), abs(v)) <= HALF_SIDE
    ellipse = (u / SEMI_AXES[0]) ** 2 + (v / SEMI_AXES[1]) ** 2 <= 1
    a, b = u / UNIT, v / UNIT
    heart = (a**2 + b**2 - 1) ** 3 <= a**2 * b**3
    drawn: NDArray[np.bool_] = np.choose(shape, [square, ellipse, heart])
    return drawn


def write_dsprites(
    path: Path,
    *,
    shapes: Sequence[int] = range(3),
    scales: Sequence[int] = range(6),
    orientations: Sequence[int] = range(40),
    xs: Sequence[int] = range(32),
    ys: Sequence[int] = range(32),
    side: int = 64,
) -> int:
    """Write those images of the grid that have the given classes, as the published npz holds them, and count them.

    The published metadata is a pickled dictionary; its names and sizes stand here as arrays of their own.
    """
    chosen = np.meshgrid([0], shapes, scales, orientations, xs, ys, indexing="ij")
    classes = np.stack([axis.ravel() for axis in chosen], 1).astype(np.int64)
    latents = np.stack([v[c] for v, c in zip(values(), classes.T, strict=True)], 1)
    images = sprites(classes[:, 1], *latents[:, 2:].T, side=side)
    np.savez_compressed(
        path,
        imgs=images,
        latents_values=latents,
        latents_classes=classes,
        latents_names=np.array(NAMES),
        latents_sizes=np.array(SIZES, np.int64),
    )
    return len(images)
