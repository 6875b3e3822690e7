"""Draws of unequal shares, repeated until every client has enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from common.data.division.stratify import Indices
from common.errors import DataError
from common.learning.patience import look_at_the_clock

if TYPE_CHECKING:
    from common.settings.sections import PartitionSettings


def dirichlet(alpha: float, clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw shares [clients] from the symmetric Dirichlet(alpha); DataError if floats cannot draw with alpha."""
    shares = rng.dirichlet(np.full(clients, alpha))
    if not np.isclose(shares.sum(), 1):  # not a number, or all zero where the sum overflowed
        raise DataError(
            f"partition.alpha={alpha} is too extreme to draw with; use partition.kind=iid for an "
            "even partition, or partition.kind=by_class with one class a client for the other "
            "extreme"
        )
    return shares


def divide(total: int, shares: NDArray[np.float64]) -> Indices:
    """Cut ``total`` images at the rounded cumulative shares; the parts sum to ``total`` exactly."""
    ends = np.rint(np.cumsum(shares) * total).astype(np.int64)
    ends[-1] = total
    return np.diff(np.minimum(ends, total), prepend=0)


def draw_until_large_enough(
    draw: Callable[[], Indices], images: int, clients: int, settings: PartitionSettings
) -> Indices:
    """Repeat a draw of counts [K, classes] until every client has ``min_size`` images.

    A client without any image is refused whatever ``min_size`` says.

    Raises
    ------
    DataError
        there are too few images for that, or ``max_draws`` draws did not give it.
    """
    least = max(1, settings.min_size)
    if clients * least > images:
        raise DataError(
            f"{clients} clients with partition.min_size={settings.min_size} need {clients * least} "
            f"images, there are {images}; set partition.min_size to {images // clients} or less, "
            "or lower federation.sites"
        )
    best = 0
    for _ in range(settings.max_draws):
        look_at_the_clock()
        counts = draw()
        smallest = int(counts.sum(axis=1).min())
        if smallest >= least:
            return counts
        best = max(best, smallest)
    lower = (
        "partition.min_size or federation.sites" if settings.min_size > 1 else "federation.sites"
    )
    raise DataError(
        f"{settings.max_draws} draws of partition.kind={settings.kind} with "
        f"partition.alpha={settings.alpha} gave no partition in which each of {clients} clients "
        f"has {least} images (the best had a smallest client of {best}); raise partition.alpha or "
        f"partition.max_draws, or lower {lower}"
    )
