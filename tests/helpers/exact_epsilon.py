"""What releases exactly cost, by closed forms and quadrature: what an accountant must never fall below."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

Array = NDArray[np.float64]


def solved(delta_of: Callable[[float], float], delta: float) -> float:
    """Return the least epsilon from 0 at which ``delta_of`` is no more than ``delta``, from above."""
    if delta_of(0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while delta_of(high) > delta:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle) > delta else (low, middle)
    return high


def gaussian(s: float, delta: float) -> float:
    """Return the epsilon of one Gaussian release (Balle and Wang, 2018, Theorem 8)."""

    def delta_of(eps: float) -> float:
        above, below = 1 / (2 * s) - eps * s, -1 / (2 * s) - eps * s
        return float(np.exp(log_ndtr(above)) - np.exp(eps + log_ndtr(below)))

    return solved(delta_of, delta)


def one_sample(s: float, rate: float, delta: float) -> float:
    """Return the epsilon of one release of a Poisson sample, the worse of an example added and one removed.

    With P = (1 - q) N(0, s^2) + q N(1, s^2) and Q = N(0, s^2), the ratio P/Q at y is
    1 - q + q exp((2 y - 1) / (2 s^2)), which grows with y: so P/Q = r at y(r), and both hockey-stick divergences are
    sums of normal tails.
    """

    def where(ratio: float) -> float:
        share = (ratio - (1 - rate)) / rate
        return s * s * np.log(share) + 0.5 if share > 0 else -np.inf

    def delta_of(eps: float) -> float:
        y = where(np.exp(eps))
        tails = np.exp(log_ndtr(-y / s)), np.exp(log_ndtr(-(y - 1) / s))
        removed = (1 - rate) * tails[0] + rate * tails[1] - np.exp(eps) * tails[0]
        y = where(np.exp(-eps))
        tails = np.exp(log_ndtr(y / s)), np.exp(log_ndtr((y - 1) / s))
        added = tails[0] - np.exp(eps) * ((1 - rate) * tails[0] + rate * tails[1])
        return float(max(removed, added))

    return solved(delta_of, delta)


def two_samples(s: float, rates: tuple[float, float], delta: float) -> float:
    """Return the same of two releases at two rates: the outer integral by the trapezoidal rule, on 200,001 points."""
    y = np.linspace(-10 * s, 10 * s + 1, 200_001)

    def normal(at: Array) -> Array:
        density: Array = np.exp(-at * at / (2 * s * s)) / (s * np.sqrt(2 * np.pi))
        return density

    first, second = rates
    with_it, without = (1 - first) * normal(y) + first * normal(y - 1), normal(y)

    def inner(ratio: Array) -> tuple[Array, Array]:
        share = (ratio - (1 - second)) / second
        at = np.where(share > 0, s * s * np.log(np.maximum(share, 1e-300)) + 0.5, -np.inf)
        return np.exp(log_ndtr(-at / s)), np.exp(log_ndtr(-(at - 1) / s))

    def delta_of(eps: float) -> float:
        above = inner(np.exp(eps) * without / with_it)
        p = (1 - second) * above[0] + second * above[1]
        removed = np.trapezoid(with_it * p - np.exp(eps) * without * above[0], y)
        above = inner(np.exp(-eps) * without / with_it)
        below = 1 - above[0], 1 - above[1]
        p = (1 - second) * below[0] + second * below[1]
        added = np.trapezoid(without * below[0] - np.exp(eps) * with_it * p, y)
        return float(max(removed, added))

    return solved(delta_of, delta)
