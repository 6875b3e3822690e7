"""The epsilon of events together, by Rényi differential privacy and by Opacus' PRV accountant."""

from __future__ import annotations

import logging
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.privacy.events import Adjacency, Event

_FRACTIONS = tuple(1 + x / 10 for x in range(1, 100))

#: RDP's orders: Opacus' own end at 63, where weak releases have their best far beyond (1 + 4.8 s at delta 1e-5)
ORDERS: tuple[float, ...] = (*_FRACTIONS, *np.geomspace(11, 1e6, 200).tolist())

#: those of Poisson samples: integers from 11 on, since a fractional one takes as many terms and is less exact
SAMPLED_ORDERS: tuple[float, ...] = (
    *_FRACTIONS,
    *map(float, range(11, 64)),
    *map(float, sorted({round(x) for x in np.geomspace(64, 1024, 30)})),
)

#: those of Skellam noise, whose bound needs integer orders
WHOLE_ORDERS: tuple[float, ...] = tuple(
    float(order) for order in sorted({*range(2, 64), *map(round, np.geomspace(64, 1e6, 120))})
)

#: RDP's epsilons for which the PRV accountant is used: below, its error would decide; its exponentials overflow at 709
_LEAST_PRV, _MOST_PRV = 1e-3, 500.0

#: the error that PRV adds is a hundredth of epsilon, and never finer than what is too dear; nor is it coarser than
#: Opacus' own, unless there are more steps than this, with which that is too dear as well
_FINEST, _COARSEST, _MANY = 1e-4, 0.01, 1000

#: steps for which the PRV accountant is used: beyond, its grid takes gigabytes
_MOST_STEPS = 10**7

#: kinds of events, and noise on samples, up to which it is used: each kind takes seconds, and much noise costs little
_MOST_KINDS, _MOST_NOISE = 4, 100.0

#: places of its grids for all kinds together up to which it is used: some seven seconds and half a gigabyte. Without
#: an end, much noise on tiny samples takes minutes and all the memory that there is
MOST_PLACES = 2**23

#: how often what was released: (noise multiplier, sample rate) -> steps
Steps = Mapping[tuple[float, float], int]


@dataclass(frozen=True)
class Epsilon:
    """The epsilon of some events at one delta by Opacus' two accountants, either of them an upper bound.

    ``prv`` is infinite where that accountant is not asked, or finds none.
    """

    rdp: float
    prv: float

    @property
    def value(self) -> float:
        """The smaller epsilon of the two accountants."""
        return min(self.rdp, self.prv)


def epsilon(
    events: Iterable[Event],
    delta: float,
    adjacency: Adjacency = "add-remove",
    most_places: int = MOST_PLACES,
) -> Epsilon:
    """Return what ``events`` of the same person's data cost together; infinite where one of them had no noise.

    Gaussian releases of all of the data compose to one Gaussian release, exactly: 1 / s^2 is the sum of theirs (Dong
    et al., 2022, Corollary 3.3). So the accountants compute that one, sample rate 1, in a tenth of a second;
    for 300 releases the PRV accountant takes up to half a minute and returns the same.

    For s from 0.3 to 200 and 1 to 300 releases at delta 1e-5, against the exact epsilon (Balle and Wang, 2018,
    Theorem 8): RDP is 1.02 to 1.15 times it. Its orders go up to a million: with Opacus' own, which end at 63, it never
    falls below 0.10, eight times too much at s = 200. PRV is at most 1.012 times it, and never less. Its error is set
    to a hundredth of RDP's epsilon: with Opacus' own, which is 0.01, it adds four fifths at s = 200, and takes sixteen
    seconds instead of one for 20,000 steps of epsilon 80. It converges throughout, but from an epsilon of about 700 its
    exponentials overflow, and it returns too little (709.8 for 746.8) or nothing: beyond 500 only RDP is used.

    Events of the other ``adjacency`` are converted (`Event.converted_to`). The PRV accountant is used up to so many
    places of its grids: it takes a second for a million of them.
    """
    rdp, prv = _bounds(events, delta, adjacency, most_places)
    return Epsilon(rdp, prv())


def costs_at_most(
    most: float, events: Iterable[Event], delta: float, adjacency: Adjacency = "add-remove"
) -> bool:
    """Return whether the `epsilon` of ``events`` is at most ``most``; the PRV accountant is used where RDP says no.

    Its import takes seconds, which a site's budget need not spend in every process until it is nearly used up.
    """
    rdp, prv = _bounds(events, delta, adjacency)
    return rdp <= most or prv() <= most


def _bounds(
    events: Iterable[Event], delta: float, adjacency: Adjacency, most_places: int = MOST_PLACES
) -> tuple[float, Callable[[], float]]:
    """Return RDP's epsilon, and what asks the PRV accountant for its own."""
    if not 0 < delta < 1:
        raise ValueError(f"delta={delta}: give a number above 0 and below 1")
    events = [event for event in events if event.releases]
    of_skellam = any(event.mechanism.startswith(SKELLAM) for event in events)
    full, sampled = _sorted(event.converted_to(adjacency) for event in events)
    if not full and not sampled:
        return 0.0, lambda: 0.0
    if full == math.inf or any(noise == 0 for noise, _ in sampled):
        return math.inf, lambda: math.inf
    steps: dict[tuple[float, float], int] = dict(sampled)
    if full:
        steps[1 / math.sqrt(2 * full), 1.0] = 1
    rdp = _rdp(steps, delta, integers=of_skellam)
    if of_skellam:  # not a Gaussian, except in its Rényi divergences
        return rdp, lambda: math.inf
    return rdp, partial(_prv, steps, delta, rdp, most_places)


def _sorted(events: Iterable[Event]) -> tuple[float, Steps]:
    """Return the rho of what was released of all the data, and the steps of what was released of samples."""
    rho, sampled = [], Counter[tuple[float, float]]()
    for event in events:
        if event.sample_rate == 1:
            rho.append(event.rho)
        else:
            sampled[event.noise_multiplier, event.sample_rate] += event.steps
    return math.fsum(rho), dict(sorted(sampled.items()))


def _opacus_prv() -> Any:
    """Return the parts of Opacus' PRV accountant, imported on use since that takes seconds and few runs need it.

    Opacus calls ``logging.basicConfig``, after which every line of the run would be logged twice. It does nothing
    where the root logger has a handler.
    """
    root, handler = logging.getLogger(), logging.NullHandler()
    root.addHandler(handler)
    try:
        from opacus.accountants.analysis import prv
    finally:
        root.removeHandler(handler)
    return prv


def _rdp(steps: Steps, delta: float, *, integers: bool = False) -> float:
    orders = ORDERS if all(rate == 1 for _, rate in steps) else SAMPLED_ORDERS
    if integers:
        exact = WHOLE_ORDERS if orders is ORDERS else orders
        orders = tuple(order for order in exact if order.is_integer() and order >= 2)
    total: NDArray[np.float64] = np.zeros(len(orders))
    for (noise, rate), count in steps.items():
        total = total + count * rdp_of_step(noise, rate, orders)
    return epsilon_at(total, orders, delta)


def _prv(steps: Steps, delta: float, rdp: float, most_places: int) -> float:
    """Return the PRV accountant's epsilon; infinite where it overflows or says that it cannot compute one."""
    fine = len(steps) <= _MOST_KINDS and all(r == 1 or n <= _MOST_NOISE for n, r in steps)
    if not fine or not _LEAST_PRV <= rdp <= _MOST_PRV or sum(steps.values()) > _MOST_STEPS:
        return math.inf
    coarsest = _COARSEST if sum(steps.values()) <= _MANY else math.inf
    error = min(max(rdp / 100, _FINEST), coarsest)
    end, mesh = _grid(steps, delta / 1000, error)
    if len(steps) * 2 * end / mesh > most_places:
        return math.inf
    prv = _opacus_prv()
    try:
        with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"):
            domain = prv.Domain.create_aligned(-end, end, mesh)
            losses = (prv.PoissonSubsampledGaussianPRV(rate, noise) for noise, rate in steps)
            ends = domain.t_min, domain.t_max
            cut = [prv.TruncatedPrivacyRandomVariable(loss, *ends) for loss in losses]
            discrete = [prv.discretize(loss, domain) for loss in cut]
            composed = prv.compose_heterogeneous(discrete, list(steps.values()))
            found = composed.compute_epsilon(delta, delta / 1000, error)[2]  # the upper bound
    except (RuntimeError, ValueError, ArithmeticError, MemoryError):
        return math.inf
    # as an upper bound: what is no number bounds nothing, none is below 0
    return math.inf if math.isnan(found) else max(float(found), 0.0)


def _grid(steps: Steps, delta_error: float, error: float) -> tuple[float, float]:
    """Return where PRV's grid ends on either side, and the distance of its places (Gopi et al., 2021, remark 5.6).

    These are Opacus' own except for the orders of RDP, which take a thousandth of the time.
    """
    count = sum(steps.values())
    ends = [_rdp({kind: 1}, delta_error / (8 * count)) for kind in steps]
    end = max(error, _rdp(steps, delta_error / 4), *ends) + 3
    return end, error / math.sqrt(count * math.log(12 / delta_error) / 2)


# ---- rdp -----------------------------------------------------------------------------------------
# Rényi differential privacy of Gaussian noise on Poisson samples (Mironov et al., 2019), all orders at once.
#
# The formulas are those of section 3.3 there, as Opacus has them. Opacus sums the terms of a fractional order one by
# one until they are small, which for some noise takes seconds, and where a term is not a number never ends. Here each
# fractional order has a fixed number of terms, and what these leave out is bounded and added.

Array = NDArray[np.float64]

#: terms of the series of a fractional order: the next one is below 1e-6 of the sum wherever it matters
_TERMS = 128


@lru_cache(maxsize=4096)  # the same kinds in every round, and only their steps are more
def rdp_of_step(noise: float, rate: float, orders: tuple[float, ...]) -> Array:
    """Return an upper bound on one step's RDP at each of ``orders``; infinite where it cannot be computed.

    The noise multiplier is above 0, the ``rate`` the chance of each example to be in the sample, above 0. Orders are
    above 1, the integers at most some thousands, the others at most 64. What is returned is not to be changed.
    """
    found = np.full(len(orders), math.inf)
    if rate == 1:
        return np.array(orders) / (2 * noise * noise) if noise * noise else found
    integer = np.array([float(order).is_integer() for order in orders])
    with np.errstate(all="ignore"):
        for chosen, log_moments in ((integer, _whole), (~integer, _fractional)):
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
    # Here, as its import takes a quarter of a second, which a run without noise need not spend.
    from scipy.special import gammaln

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
    from scipy.special import gammaln, gammasgn

    alpha, i = np.array(orders)[:, None], np.arange(_TERMS + 1.0)[None]
    rest = alpha - i + 1
    return alpha, i, gammaln(alpha + 1) - gammaln(i + 1) - gammaln(rest), gammasgn(rest)


def _fractional(noise: float, rate: float, orders: tuple[float, ...]) -> Array:
    """Return log(A_0 + A_1), each a series over i; past the order itself its terms alternate and fall.

    So what comes after the last term is no more than the next one, which is added.
    """
    from scipy.special import log_ndtr

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


# ---- skellam -------------------------------------------------------------------------------------
# Skellam noise, of which shares add up exactly (Agarwal, Kairouz and Liu, 2021).

SKELLAM = "skellam"
"""How the name of a mechanism begins whose noise is Skellam's; its event has what `gaussian_like` returns."""


def gaussian_like(noise: float, sensitivity: float, numbers: int) -> float:
    """Return the noise multiplier of a Gaussian whose Rényi divergence at each integer order is that of Skellam noise.

    Or more: with the variance mu = (noise D)^2 in each number, D = ``sensitivity`` in L2 and D1 in L1, that of the
    order a is at most a D^2 / (2 mu) + ((2 a - 1) D^2 + 6 D1) / (4 mu^2) (their Corollary 3.6). From order 2 on this is
    at most a times D^2 / (2 mu) + D^2 / (2 mu^2) + max(0, 6 D1 - D^2) / (8 mu^2), which is a Gaussian's.

    The sum has n ``numbers``; an example moves it by D in steps of its grid, so D1 is at most D^2, and sqrt(n) D.
    """
    square = sensitivity**2
    most = min(square, math.sqrt(numbers) * sensitivity)
    variance = noise**2 * square
    each = square / (2 * variance) + square / (2 * variance**2)
    each += max(0.0, 6 * most - square) / (8 * variance**2)
    return math.sqrt(1 / (2 * each))


# ---- sensitivity ---------------------------------------------------------------------------------
# How far one example can move a statistic.


def latent_sensitivity(dimension: int, images: int, clip: float = 0.0) -> float:
    """Return how far the mean of m latents in [0, 1]^l can move, in L2, when one image is replaced by another.

    The number of images is public, and the encoder is fixed: one that has been trained on the image moves the
    mean by more. Then one latent z of m becomes z', and the mean moves by ||z - z'|| / m.

    No coordinate moves by more than 1, so that ||z - z'|| <= sqrt(l), as between two opposite corners. A latent that
    has been scaled down to a norm of C where it was longer has no negative coordinate still. So <z, z'> >= 0, and
    ||z - z'||^2 = ||z||^2 + ||z'||^2 - 2 <z, z'> <= 2 C^2, as between two axes; any two vectors of that norm could be
    at a distance of 2 C. So it is sqrt(l) / m, or with a ``clip`` C the smaller of sqrt(l) and sqrt(2) C, over m.
    """
    if dimension < 1 or images < 1 or not clip >= 0:
        raise ValueError(
            f"the mean of {images} latents of {dimension} coordinates, scaled to a norm of {clip}: give at least one "
            "of each, and a norm from 0"
        )
    reach = math.sqrt(dimension)
    return (min(reach, math.sqrt(2) * clip) if clip else reach) / images
