"""How far one example can move a statistic."""

from __future__ import annotations

import math


def latent_sensitivity(dimension: int, images: int, clip: float = 0.0) -> float:
    """Return how far the mean of latents in [0, 1]^l can move, in L2, when one image is replaced by another.

    The number of images is public, and the encoder stays as it is: one that has been trained on the image moves the
    mean by more. Then one latent z of m becomes z', and the mean moves by ||z - z'|| / m.

    No coordinate moves by more than 1, so that ||z - z'|| <= sqrt(l), as between two opposite corners. A latent that
    has been scaled down to a norm of C where it was longer has no negative coordinate still. So <z, z'> >= 0, and
    ||z - z'||^2 = ||z||^2 + ||z'||^2 - 2 <z, z'> <= 2 C^2, as between two axes; any two vectors of that norm could be
    2 C apart.

    Parameters
    ----------
    dimension : int
        l, 1 or more.
    images : int
        m, 1 or more.
    clip : float
        C; 0: the latents are as the encoder gives them.

    Returns
    -------
    float
        sqrt(l) / m, or the smaller of sqrt(l) and sqrt(2) C, over m.

    Raises
    ------
    ValueError
        If there is no coordinate, no image, or a negative norm.
    """
    if dimension < 1 or images < 1 or not clip >= 0:
        raise ValueError(
            f"the mean of {images} latents of {dimension} coordinates, scaled to a norm of {clip}: give at least one "
            "of each, and a norm from 0"
        )
    apart = math.sqrt(dimension)
    return (min(apart, math.sqrt(2) * clip) if clip else apart) / images
