"""Noise and samples of the system's entropy: new each time, and of no generator.

There are twenty bounds, each of which fails with probability 5e-8: one run in a million.
"""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from scipy.stats import binom

from common.draws.entropy import system_normal, system_uniform

N = 10**6

RARELY = 5e-8
"""The chance of a bound, on both sides together."""
FAR = 5.45
"""How many standard deviations a normal variable is from its mean so rarely."""


@pytest.fixture(scope="module")
def drawn() -> torch.Tensor:
    return system_normal((1000, N // 1000))


def test_moments(drawn: torch.Tensor) -> None:
    """Of n draws the mean of z^k has variance (E z^2k - (E z^k)^2) / n: 1, 2, 15 and 96 over n."""
    assert (drawn.shape, drawn.dtype) == ((1000, 1000), torch.float32)
    z = drawn.double()
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(float((z**power).mean()) - mean) < FAR * math.sqrt(variance / N)


def test_the_distribution(drawn: torch.Tensor) -> None:
    """Kolmogorov and Smirnov's D exceeds x / sqrt(n) with probability 2 exp(-2 x^2), 5e-8 at x = 2.958."""
    cdf = torch.special.ndtr(drawn.double().flatten().sort().values)
    steps = torch.arange(N + 1, dtype=torch.float64) / N
    apart = torch.maximum((cdf - steps[:-1]).max(), (steps[1:] - cdf).max())
    assert float(apart) < 2.958 / math.sqrt(N)


@pytest.mark.parametrize("beyond", [2.0, 3.0, 4.0, 4.5])
def test_both_tails(drawn: torch.Tensor, beyond: float) -> None:
    p = math.erfc(beyond / math.sqrt(2)) / 2
    for tail in (drawn > beyond, drawn < -beyond):
        assert binom.ppf(RARELY / 2, N, p) <= int(tail.sum()) <= binom.isf(RARELY / 2, N, p)


def test_neighbours_have_nothing_in_common(drawn: torch.Tensor) -> None:
    z = drawn.double().flatten()
    assert abs(float((z[1:] * z[:-1]).mean())) < FAR / math.sqrt(N)


def test_no_call_repeats_another_and_no_generator_is_touched() -> None:
    def states() -> tuple[object, ...]:
        numpy = np.random.get_state()  # noqa: NPY002
        return torch.get_rng_state().tolist(), str(numpy), random.getstate()

    torch.manual_seed(0)
    before = states()
    one = system_normal((50,))
    assert states() == before
    torch.manual_seed(0)
    assert not set(one.tolist()) & set(system_normal((50,)).tolist())


@pytest.mark.parametrize(("byte", "extreme"), [(b"\0", -8.2095), (b"\xff", 8.2095)])
def test_no_bits_give_infinity(
    monkeypatch: pytest.MonkeyPatch, byte: bytes, extreme: float
) -> None:
    """The quantile of 2^-53 is -8.2095."""
    monkeypatch.setattr("os.urandom", lambda count: byte * count)
    assert system_normal((3,)).tolist() == pytest.approx([extreme] * 3, abs=1e-4)


def test_every_shape() -> None:
    assert system_normal(()).shape == ()
    assert system_normal((0, 3)).shape == (0, 3)
    assert system_normal([2, 3]).shape == (2, 3)


# ---- Poisson samples ----------------------------------------------------------------------------------


def sample(count: int, rate: float) -> torch.Tensor:
    return (system_uniform((count,)) < rate).nonzero().flatten()


@pytest.mark.parametrize("rate", [0.001, 0.05, 0.5, 0.97])
def test_each_position_is_drawn_with_its_chance(rate: float) -> None:
    drawn = sample(N, rate)
    assert binom.ppf(RARELY / 2, N, rate) <= len(drawn) <= binom.isf(RARELY / 2, N, rate)
    assert bool((drawn[1:] > drawn[:-1]).all())


def test_by_itself_not_by_its_neighbour_nor_in_each_sample_alike() -> None:
    """Of two independent draws at rate 1/2 both are in with chance 1/4, beside each other and from sample to sample."""
    mask = torch.zeros(2, N, dtype=torch.bool)
    for row in mask:
        row[sample(N, 0.5)] = True
    beside, again = mask[0, 1:] & mask[0, :-1], mask[0] & mask[1]
    for both in (beside, again):
        assert abs(float(both.double().mean()) - 0.25) < FAR * math.sqrt(0.3125 / N)


def test_the_ends_of_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sample(1000, 1.0).tolist() == list(range(1000))
    assert sample(1000, 0.0).tolist() == sample(0, 0.5).tolist() == []
    monkeypatch.setattr("os.urandom", lambda count: b"\xff" * count)
    assert sample(3, 1.0).tolist() == [0, 1, 2], "the largest uniform is below 1"
    assert sample(3, 1 - 2.0**-53).tolist() == []
