"""Stratified cuts: the server's validation share, a site's hold-out, the test split of digits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from common.data.division.groups import Groups
from common.draws.seeding import numpy_generator
from common.errors import DataError
from common.samples.dataset import Labels

Indices = NDArray[np.int64]


def validation_split(
    labels: Labels, share: float, seed: int, groups: Labels | None = None, least: int = 0
) -> tuple[Indices, Indices]:
    """Cut a stratified share off a training set, before it is partitioned.

    The share's total is ``round(share * n)``, divided over the classes in proportion (largest
    remainders). No class loses its last image to it, so a set of classes with one image each gives
    fewer than asked. Groups stay whole, so that of them it is about that.

    Parameters
    ----------
    labels
        int64 [n].
    share
        what to hold back, in [0, 0.5].
    seed
        the run's seed; the same labels, share and seed give the same cut.
    groups
        int64 [n], which samples belong together; None where each is for itself.
    least
        how many of each class are held back at least, where it has more than that and anything is.

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
    rng, count = numpy_generator(seed, "validation"), round(share * len(labels))
    least = least if share else 0
    if groups is not None and share:
        whole = Groups(labels, groups)
        held = whole.cut(_apportion(np.bincount(whole.strata[whole.of]), count, least), rng)
    else:
        held = stratified_mask(labels, count, rng.permutation(len(labels)), least)
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


def stratified_mask(
    labels: Labels, count: int, priority: NDArray[np.generic], least: int = 0
) -> NDArray[np.bool_]:
    """Mark ``count`` of the images, each class in proportion, those of lowest ``priority`` first.

    Parameters
    ----------
    labels
        int64 [n], not negative.
    count
        how many to mark, at most half of n.
    priority
        distinct values [n].
    least
        how many of each class are marked at least, where it has more than that.

    Returns
    -------
    bool [n] with ``count`` marks, fewer only where each class would lose its last image, more for ``least``.
    """
    totals = np.bincount(labels)
    quotas = _apportion(totals, count, least)
    order = np.lexsort((priority, labels))
    firsts = np.repeat(np.cumsum(totals) - totals, totals)
    rank = np.arange(len(labels)) - firsts  # place within the class, by priority
    mask = np.zeros(len(labels), dtype=np.bool_)
    mask[order] = rank < np.repeat(quotas, totals)
    return mask


def _apportion(totals: Indices, count: int, least: int = 0) -> Indices:
    """Divide ``count`` over classes by largest remainders, leaving each class one image; ``least`` of it, or more."""
    exact = count * totals / max(1, int(totals.sum()))
    quotas = np.floor(exact).astype(np.int64)
    room = quotas < totals - 1
    # A class without room ranks last; ties go to the lower class, so that the result is the same
    # everywhere.
    by_remainder = np.lexsort((np.arange(len(totals)), quotas - exact, ~room))
    missing = min(count - int(quotas.sum()), int(room.sum()))
    quotas[by_remainder[:missing]] += 1
    return np.maximum(quotas, np.clip(totals - 1, 0, least))
