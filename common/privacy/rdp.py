"""Rényi differential privacy of Gaussian noise on Poisson samples (Mironov et al., 2019), all orders at once.

The formulas are those of section 3.3 there, as Opacus has them. Opacus sums the terms of a fractional order one by one
until they are small, which for some noise takes seconds, and where a term is not a number never ends. Here each
fractional order has a fixed number of terms, and what these leave out is bounded and added.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, gammasgn, log_ndtr

Array = NDArray[np.float64]

#: terms of the series of a fractional order: the next one is below 1e-6 of the sum wherever it matters
_TERMS = 128


@lru_cache(maxsize=4096)  # the same kinds in every round, and only their steps are more
def rdp_of_step(noise: float, rate: float, orders: tuple[float, ...]) -> Array:
    """Return an upper bound on one step's RDP at each of ``orders``; infinite where it cannot be computed.

    Parameters
    ----------
    noise : float
        The noise multiplier, above 0.
    rate : float
        The chance of each example to be in the sample, above 0 and at most 1.
    orders : tuple of float
        Each above 1; the whole ones of at most some thousands, the others at most 64.

    Returns
    -------
    float64 array [len(orders)]
        Not to be changed.
    """
    if rate == 1:
        return (
            np.array(orders) / (2 * noise * noise)
            if noise * noise
            else np.full(len(orders), math.inf)
        )
    found = np.full(len(orders), math.inf)
    whole = np.array([float(order).is_integer() for order in orders])
    with np.errstate(all="ignore"):
        for chosen, log_moments in ((whole, _whole), (~whole, _fractional)):
            if chosen.any():
                some = tuple(np.array(orders)[chosen].tolist())
                found[chosen] = log_moments(noise, rate, some) / (np.array(some) - 1)
    return np.where(np.isfinite(found), np.maximum(found, 0.0), math.inf)


def epsilon_at(rdp: Array, orders: tuple[float, ...], delta: float) -> float:
    """Return the epsilon at ``delta`` of what has ``rdp`` at ``orders`` (Canonne et al., 2020, proposition 12)."""
    alpha = np.array(orders)
    with np.errstate(all="ignore"):
        each = rdp - (math.log(delta) + np.log(alpha)) / (alpha - 1) + np.log1p(-1 / alpha)
    each = each[np.isfinite(each)]
    return max(0.0, float(each.min())) if len(each) else math.inf


@cache
def _binomials(orders: tuple[float, ...]) -> tuple[Array, Array, Array, NDArray[np.int64]]:
    """Return order, k and log binom(order, k) for all k, one order after the other, and where each begins."""
    sizes = np.array([int(order) + 1 for order in orders])
    starts = np.cumsum(sizes) - sizes
    alpha = np.repeat(np.array(orders), sizes)
    k = (np.arange(sizes.sum()) - np.repeat(starts, sizes)).astype(np.float64)
    return alpha, k, gammaln(alpha + 1) - gammaln(k + 1) - gammaln(alpha - k + 1), starts


def _whole(noise: float, rate: float, orders: tuple[float, ...]) -> Array:
    """Return log of the sum of binom(alpha, k) q^k (1-q)^(alpha-k) exp((k^2 - k) / (2 sigma^2)) over k."""
    alpha, k, binomial, starts = _binomials(orders)
    terms = binomial + k * math.log(rate) + (alpha - k) * math.log1p(-rate)
    terms = terms + (k * k - k) / (2 * noise * noise)
    most = np.maximum.reduceat(terms, starts)
    sizes = np.diff(np.append(starts, len(terms)))
    sums: Array = np.add.reduceat(np.exp(terms - np.repeat(most, sizes)), starts)
    return most + np.log(sums)


@cache
def _generalised(orders: tuple[float, ...]) -> tuple[Array, Array, Array, Array]:
    """Return order [n, 1], i [1, terms + 1], and log and sign of binom(order, i), [n, terms + 1]."""
    alpha, i = np.array(orders)[:, None], np.arange(_TERMS + 1.0)[None]
    rest = alpha - i + 1
    return alpha, i, gammaln(alpha + 1) - gammaln(i + 1) - gammaln(rest), gammasgn(rest)


def _fractional(noise: float, rate: float, orders: tuple[float, ...]) -> Array:
    """Return log(A_0 + A_1), each a series over i; past the order itself its terms alternate and fall.

    So what comes after the last term is no more than the next one, which is added.
    """
    alpha, i, binomial, sign = _generalised(orders)
    j, variance = alpha - i, noise * noise
    z = variance * (math.log1p(-rate) - math.log(rate)) + 0.5
    first = binomial + i * math.log(rate) + j * math.log1p(-rate)
    first = first + (i * i - i) / (2 * variance) + log_ndtr((z - i) / noise)
    second = binomial + j * math.log(rate) + i * math.log1p(-rate)
    second = second + (j * j - j) / (2 * variance) + log_ndtr((j - z) / noise)
    most = np.maximum(first, second).max(1, keepdims=True)
    terms = np.exp(first - most) + np.exp(second - most)
    sums = (sign * terms)[:, :-1].sum(1) + terms[:, -1]
    log_moments: Array = most[:, 0] + np.log(sums)
    # Cancellation leaves as much of a sum's digits as the sum is less than its largest term.
    sound = sums > 1e-9 * terms.max(1)
    return np.where(sound, log_moments, math.inf)
