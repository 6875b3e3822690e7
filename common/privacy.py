"""What differential privacy costs: sensitivities, and the epsilon of releases together.

An event is what has been released of a person's data, with noise. All is said of real numbers: what the last bits of
floating-point noise may tell (Mironov, 2012) is outside of it.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

#: RDP's orders: Opacus' own end at 63, where weak releases have their best far beyond (1 + 4.8 s at delta 1e-5)
ORDERS: tuple[float, ...] = (
    *(1 + x / 10 for x in range(1, 100)),
    *np.geomspace(11, 1e6, 200).tolist(),
)

#: RDP's epsilons for which the PRV accountant is asked: below, its error would decide; its exponentials overflow at 709
_LEAST_PRV, _MOST_PRV = 1e-3, 500.0

#: the error that PRV adds is a hundredth of epsilon, within what is too coarse and too dear
_COARSEST, _FINEST = 0.01, 1e-4


@dataclass(frozen=True)
class GaussianRelease:
    """A statistic that is released ``releases`` times, each time with Gaussian noise of its own.

    Parameters
    ----------
    noise_multiplier : float
        The noise's standard deviation over the statistic's L2 sensitivity; 0: no noise.
    releases : int
        How often.

    Raises
    ------
    ValueError
        If either is negative or no number.
    """

    noise_multiplier: float
    releases: int = 1

    def __post_init__(self) -> None:
        if not (self.noise_multiplier >= 0 and self.releases >= 0):
            raise ValueError(
                f"{self.releases} releases with noise of {self.noise_multiplier} times the sensitivity: "
                "give numbers from 0"
            )

    @property
    def rho(self) -> float:
        """What they cost in zero-concentrated differential privacy: releases / (2 multiplier^2)."""
        if not self.releases:
            return 0.0
        inverse = 1 / self.noise_multiplier if self.noise_multiplier else math.inf
        return self.releases * inverse * inverse / 2


@dataclass(frozen=True)
class Epsilon:
    """The epsilon of some events at one delta by Opacus' two accountants, either of them an upper bound.

    ``prv`` is infinite where that accountant is not asked, or finds none.
    """

    rdp: float
    prv: float

    @property
    def value(self) -> float:
        """The smaller of the two."""
        return min(self.rdp, self.prv)


def epsilon(events: Iterable[GaussianRelease], delta: float) -> Epsilon:
    """Return what ``events`` of the same person's data cost together; infinite where one of them had no noise.

    Gaussian releases of one's whole data compose to one Gaussian release, exactly: 1 / s^2 is the sum of theirs (Dong
    et al., 2022, Corollary 3.3). So the accountants are asked for that one, sample rate 1, in a tenth of a second;
    asked for 300 releases the PRV accountant takes up to half a minute and returns the same.

    For s from 0.3 to 200 and 1 to 300 releases at delta 1e-5, against the exact epsilon (Balle and Wang, 2018,
    Theorem 8): RDP is 1.02 to 1.15 times it. Its orders go up to a million: with Opacus' own, which end at 63, it never
    falls below 0.10, eight times too much at s = 200. PRV is at most 1.012 times it, and never less. Its error is set
    to a hundredth of RDP's epsilon, at most Opacus' own 0.01, which it adds: four fifths too much at s = 200. It
    converges throughout, but from an epsilon of about 700 its exponentials overflow, and it returns too little (709.8
    for 746.8) or nothing: beyond 500 RDP alone is asked.

    Parameters
    ----------
    events : iterable of GaussianRelease
        In any order.
    delta : float
        Above 0 and below 1.

    Raises
    ------
    ValueError
        If delta is none.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta={delta}: give a number above 0 and below 1")
    rho = math.fsum(event.rho for event in events)
    if rho in (0.0, math.inf):
        return Epsilon(rho, rho)
    multiplier = 1 / math.sqrt(2 * rho)
    rdp = _rdp(multiplier, delta)
    return Epsilon(rdp, _prv(multiplier, delta, rdp))


def _accountants() -> Any:
    """Return Opacus' accountants, imported here since that takes seconds and few runs need them.

    Opacus calls ``logging.basicConfig``, after which every line of the run would be logged twice. It does nothing
    where the root logger has a handler.
    """
    root, handler = logging.getLogger(), logging.NullHandler()
    root.addHandler(handler)
    try:
        from opacus import accountants
    finally:
        root.removeHandler(handler)
    return accountants


def _rdp(multiplier: float, delta: float) -> float:
    accountant = _accountants().RDPAccountant()
    accountant.step(noise_multiplier=multiplier, sample_rate=1.0)
    with warnings.catch_warnings(action="ignore"):  # that the best order is the last one
        found = accountant.get_epsilon(delta, alphas=list(ORDERS))
    return _bound(found)


def _prv(multiplier: float, delta: float, rdp: float) -> float:
    """Return the PRV accountant's epsilon; infinite where it overflows or says that it cannot compute one."""
    if not _LEAST_PRV <= rdp <= _MOST_PRV:
        return math.inf
    accountant = _accountants().PRVAccountant()
    accountant.step(noise_multiplier=multiplier, sample_rate=1.0)
    error = min(max(rdp / 100, _FINEST), _COARSEST)
    try:
        with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"):
            found = accountant.get_epsilon(delta, eps_error=error)
    except (RuntimeError, ValueError):
        return math.inf
    return _bound(found)


def _bound(found: float) -> float:
    """Return an accountant's epsilon as an upper bound: what is no number bounds nothing, none is below 0."""
    return math.inf if math.isnan(found) else max(float(found), 0.0)


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
