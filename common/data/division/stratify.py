"""Stratified cuts: the server's validation share, a site's hold-out, the test split of digits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from common.draws.seeding import numpy_generator
from common.errors import DataError
from common.samples.dataset import Labels

Indices = NDArray[np.int64]


def validation_split(labels: Labels, share: float, seed: int) -> tuple[Indices, Indices]:
    """Cut a stratified share off a training set, before it is partitioned.

    The share's total is ``round(share * n)``, divided over the classes in proportion (largest
    remainders). No class loses its last image to it, so a set of classes with one image each gives
    fewer than asked.

    Parameters
    ----------
    labels
        int64 [n].
    share
        what to hold back, in [0, 0.5].
    seed
        the run's seed; the same labels, share and seed give the same cut.

    Returns
    -------
    Sorted indices of what stays and of what is held back: disjoint, together all of ``labels``.

    Raises
    ------
    DataError
        ``share`` lies outside [0, 0.5].
    """
    if not 0 <= share <= 0.5:
        raise DataError(f"a share of {share} cannot be held back: it must lie in [0, 0.5]")
    priority = numpy_generator(seed, "validation").permutation(len(labels))
    held = stratified_mask(labels, round(share * len(labels)), priority)
    return np.flatnonzero(~held), np.flatnonzero(held)


def held_back(labels: Labels, share: float) -> Indices:
    """Return how many of each class `validation_split` holds back, which no draw decides: int64 [max label + 1].

    Parameters
    ----------
    labels
        int64 [n].
    share
        what is held back, in [0, 0.5].
    """
    return _apportion(np.bincount(labels), round(share * len(labels)))


def subset(labels: Labels, count: int, seed: int) -> Indices:
    """Draw the ``count`` images that a run uses of a training set, before anything is held back.

    Parameters
    ----------
    labels
        int64 [n].
    count
        how many, the classes in proportion; 0 for all.

    Returns
    -------
    Sorted indices into ``labels``.

    Raises
    ------
    DataError
        there are fewer images than ``count``.
    """
    n = len(labels)
    if count > n:
        raise DataError(f"data.images={count} is more than the {n} training images there are")
    if count in (0, n):
        return np.arange(n)
    priority = numpy_generator(seed, "subset").permutation(n)
    if count <= n // 2:
        return np.flatnonzero(stratified_mask(labels, count, priority))
    return np.flatnonzero(~stratified_mask(labels, n - count, priority))


def stratified_mask(labels: Labels, count: int, priority: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Mark ``count`` of the images, each class in proportion, those of lowest ``priority`` first.

    Parameters
    ----------
    labels
        int64 [n], not negative.
    count
        how many to mark, at most half of n.
    priority
        distinct values [n].

    Returns
    -------
    bool [n] with ``count`` marks, fewer only where each class would lose its last image.
    """
    totals = np.bincount(labels)
    quotas = _apportion(totals, count)
    order = np.lexsort((priority, labels))
    firsts = np.repeat(np.cumsum(totals) - totals, totals)
    rank = np.arange(len(labels)) - firsts  # place within the class, by priority
    mask = np.zeros(len(labels), dtype=np.bool_)
    mask[order] = rank < np.repeat(quotas, totals)
    return mask


def _apportion(totals: Indices, count: int) -> Indices:
    """Divide ``count`` over classes by largest remainders, leaving each class one image."""
    exact = count * totals / max(1, int(totals.sum()))
    quotas = np.floor(exact).astype(np.int64)
    room = quotas < totals - 1
    # A class without room ranks last; ties go to the lower class, so that the result is the same
    # everywhere.
    by_remainder = np.lexsort((np.arange(len(totals)), quotas - exact, ~room))
    missing = min(count - int(quotas.sum()), int(room.sum()))
    quotas[by_remainder[:missing]] += 1
    return quotas
