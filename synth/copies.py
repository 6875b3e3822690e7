"""How near images come to real ones: what distinguishes a synthetic image from a copy."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Values of real images compared at a time: 16 MB of float32.
_VALUES = 1 << 22


def nearest_distances(images: Tensor, real: Callable[[Tensor], Tensor], count: int) -> Tensor:
    """Return the distance of each image to the nearest of ``count`` real ones.

    A distance is the root of the mean squared difference over all values: 0 is the same image.

    Parameters
    ----------
    images
        float [m, C, H, W].
    real
        Gives the real images, float [b, C, H, W] in the same units and on the same device, for
        indices int64 [b].
    count
        How many real images there are; of none every distance is infinite.

    Returns
    -------
    Distances, float32 [m], on the device of ``images``.
    """
    queries = images.flatten(1).float()
    best = queries.new_full((len(queries),), float("inf"))
    values = max(1, queries.shape[1])
    step = max(1, _VALUES // values)
    for first in range(0, count, step):
        at = torch.arange(first, min(first + step, count), device=queries.device)
        rows = real(at).flatten(1).float()
        # exact differences: by matrix products the distance of equal images would not be zero
        distances = torch.cdist(queries, rows, compute_mode="donot_use_mm_for_euclid_dist")
        best = torch.minimum(best, distances.min(1).values)
    root: Tensor = best / values**0.5
    return root
