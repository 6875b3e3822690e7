"""A lower bound on epsilon from what an attacker sees with an example and without it.

Whoever must tell two neighbouring data sets apart by a release that is (epsilon, delta)-private says "with" of at most
exp(epsilon) q + delta of those with the example, where q is the share of those without it of which the same is said
(Kairouz et al., 2015; Jagielski et al., 2020). So counts of what a test says bound epsilon from below.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import betaincinv
from torch import Tensor

Array = NDArray[np.float64]

#: thresholds that are tried of each statistic, at shares of the sample from either end
_TRIED = 300

#: how much more than the bound's own confidence is asked of a test that is chosen: of those that were tried on few
#: releases some look good by luck alone
_STRICTER = 30


@dataclass(frozen=True)
class Test:
    """A test that says "with" where a statistic lies above a threshold, or below it.

    Attributes
    ----------
    statistic : int
        Which of the statistics.
    threshold : float
        Where it changes its mind.
    above : bool
        On which side it says so.
    adding : bool
        Whether it finds that the example is absent: the two data sets have changed places.
    """

    statistic: int
    threshold: float
    above: bool
    adding: bool

    def says(self, statistics: Tensor) -> int:
        """Return of how many rows [n, k] it says so."""
        column = statistics[:, self.statistic]
        message = column > self.threshold if self.above else column < self.threshold
        return int(message.sum())


@dataclass(frozen=True)
class Bound:
    """What a test shows: with the confidence asked for, epsilon is no less than ``epsilon``."""

    epsilon: float
    test: Test
    right: int
    wrong: int
    tries: int


def lower_bound(with_it: Tensor, without: Tensor, delta: float, confidence: float = 0.95) -> Bound:
    """Return a lower bound on epsilon: one half of the releases chooses the test, the other half is counted.

    Parameters
    ----------
    with_it, without : Tensor
        Statistics of releases with the example and without it, [n, k] each.
    delta : float
        At which epsilon is meant.
    confidence : float
        With which it holds, whatever the releases are distributed like (Clopper and Pearson, 1934, for either share).

    Raises
    ------
    ValueError
        If the two are not of one shape with at least two rows.
    """
    if with_it.shape != without.shape or len(with_it) < 2:
        raise ValueError(
            f"statistics of shapes {tuple(with_it.shape)} and {tuple(without.shape)}: give as many of either, two or "
            "more"
        )
    half = len(with_it) // 2
    alpha = (1 - confidence) / 2
    test = max(
        _candidates(with_it[:half].double(), without[:half].double(), delta, alpha / _STRICTER),
        key=lambda found: found[0],
    )[1]
    counted = with_it[half:].double(), without[half:].double()
    right, wrong = (test.says(x) for x in (reversed(counted) if test.adding else counted))
    tries = len(counted[0])
    found = float(_epsilon(np.array([right]), np.array([wrong]), tries, delta, alpha)[0])
    return Bound(max(0.0, found), test, right, wrong, tries)


def _candidates(
    with_it: Tensor, without: Tensor, delta: float, alpha: float
) -> Iterator[tuple[float, Test]]:
    """Yield the best test of each statistic, side and order of the two, with what it shows on these releases."""
    n = len(with_it)
    for k in range(with_it.shape[1]):
        one, other = (x[:, k].sort().values for x in (with_it, without))
        shares = torch.logspace(np.log10(0.5 / n), np.log10(0.5), _TRIED, dtype=torch.float64)
        at = (shares * 2 * n).long().clamp(max=2 * n - 1)
        pooled = torch.cat([one, other]).sort().values
        thresholds = torch.cat([pooled[at], pooled[2 * n - 1 - at]])
        below = [torch.searchsorted(x, thresholds).double().numpy() for x in (one, other)]
        beyond = [
            n - torch.searchsorted(x, thresholds, right=True).double().numpy() for x in (one, other)
        ]
        for above, (p, q) in ((True, beyond), (False, below)):
            for adding, (right, wrong) in ((False, (p, q)), (True, (q, p))):
                shown = _epsilon(right, wrong, n, delta, alpha)
                best = int(shown.argmax())
                yield float(shown[best]), Test(k, float(thresholds[best]), above, adding)


def _epsilon(right: Array, wrong: Array, tries: int, delta: float, alpha: float) -> Array:
    """Return log((share of right ones - delta) / share of wrong ones), each share at its unfavourable end."""
    least = np.where(right > 0, betaincinv(np.maximum(right, 1), tries - right + 1, alpha), 0.0)
    most = np.where(
        wrong < tries, betaincinv(wrong + 1, np.maximum(tries - wrong, 1), 1 - alpha), 1.0
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Array = np.log(np.maximum(least - delta, 0.0) / most)
    return found
