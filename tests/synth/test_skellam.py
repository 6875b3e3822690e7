"""Shares of noise on whole steps: Skellam's distribution, what it costs, and that shares add up."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ive
from scipy.stats import chi2, kstest, skellam

from common.draws.private_draws import KeyStream
from common.privacy.accounting import SKELLAM, epsilon, gaussian_like
from common.privacy.events import Event
from synth.private_release import Gaussian


def shares(noise: float, clip: float, count: int, of: int) -> torch.Tensor:
    return Gaussian(noise, clip, KeyStream().normal).share(
        torch.zeros(count, dtype=torch.int64), of
    )


class Coarse(Gaussian):
    """The same on a grid of 1."""

    @property
    def grid(self) -> float:
        """One."""
        return 1.0


def test_a_share_has_skellams_probabilities() -> None:
    """200,000 numbers of variance 4,000, by chi-square over cells of a tenth of a deviation."""
    mechanism = Coarse(math.sqrt(4000.0), 1.0, KeyStream().normal)
    drawn = mechanism.share(torch.zeros(200_000, dtype=torch.int64), 1).numpy()
    edges = np.arange(-190, 191, 20) + 0.5
    cells = np.concatenate([[-np.inf], edges, [np.inf]])
    counts, _ = np.histogram(drawn, cells)
    expected = np.diff(skellam.cdf(cells, 2000, 2000)) * len(drawn)
    assert chi2.sf(((counts - expected) ** 2 / expected).sum(), len(counts) - 1) > 1e-5
    assert abs(drawn.mean()) < 5 * math.sqrt(4000 / len(drawn))


@pytest.mark.parametrize("of", [1, 4, 700])
def test_on_the_mechanisms_own_grid_shares_add_up_to_its_deviation(of: int) -> None:
    mechanism = Gaussian(1.5, 2.0, KeyStream().normal)
    total = (
        sum(shares(1.5, 2.0, 4000, of) for _ in range(of))
        if of < 100
        else shares(1.5, 2.0, 4000, of)
    )
    scale = mechanism.deviation * (1 if of < 100 else math.sqrt(1 / of))
    assert kstest(np.asarray(total) / scale, "norm").pvalue > 1e-5


def test_too_little_noise_for_its_sampler_is_refused() -> None:
    with pytest.raises(ValueError, match="not exact enough"):
        Coarse(1.0, 1.0, KeyStream().normal).share(torch.zeros(1, dtype=torch.int64), 1)


# ---- what it costs ----------------------------------------------------------------------------------


def divergence(order: int, shift: int, variance: float) -> float:
    """Return the Rényi divergence of Skellam noise from itself, moved by ``shift``, of one number; by its sum."""
    at = np.arange(-int(60 * math.sqrt(variance)) - 60, int(60 * math.sqrt(variance)) + 61)

    def log_of(k: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.log(ive(np.abs(k), variance))

    terms = order * log_of(at - shift) + (1 - order) * log_of(at)
    terms = terms[np.isfinite(terms)]
    return float(np.logaddexp.reduce(terms)) / (order - 1)


@given(
    st.integers(2, 12),
    st.integers(1, 4),
    st.floats(1.0, 60.0),
)
@settings(deadline=None, max_examples=60)
def test_no_whole_order_costs_more_than_the_gaussian_that_it_is_charged_as(
    order: int, shift: int, variance: float
) -> None:
    like = gaussian_like(math.sqrt(variance) / shift, shift, 1)
    assert divergence(order, shift, variance) <= order / (2 * like**2) * (1 + 1e-9)
    assert like < math.sqrt(variance) / shift


def test_on_a_fine_grid_it_costs_as_the_gaussian_of_its_deviation() -> None:
    assert gaussian_like(1.0, 2.0**24, 40_000) == pytest.approx(1.0, abs=1e-9)
    assert gaussian_like(1.0, 2.0**24, 40_000) <= 1.0


@pytest.mark.extended
def test_its_epsilon_is_of_whole_orders_alone_and_never_less_than_a_gaussians() -> None:
    for noise in (0.3, 1.0, 5.0, 100.0):
        of_gaussian = epsilon([Event("sums", noise)], 1e-5)
        of_skellam = epsilon([Event(f"{SKELLAM} sums", noise)], 1e-5)
        assert math.isinf(of_skellam.prv)
        assert of_gaussian.rdp <= of_skellam.rdp <= of_gaussian.rdp * 1.1
        mixed = epsilon([Event(f"{SKELLAM} sums", noise), Event("dp-sgd", 1.0, 0.1, 10)], 1e-5)
        assert mixed.rdp > of_skellam.rdp
