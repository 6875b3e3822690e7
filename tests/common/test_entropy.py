"""Noise and samples of the system's entropy: new each time, and of no generator.

There are twenty bounds, each of which fails with probability 5e-8: one run in a million.
"""

from __future__ import annotations

import copy
import math
import os
import pickle
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.special import ndtri
from scipy.stats import binom

from common.draws.private_draws import KeyStream, uniform_of

N = 10**6

RARELY = 5e-8
"""The chance of a bound, on both sides together."""
FAR = 5.45
"""How many standard deviations a normal variable is from its mean so rarely."""


@pytest.fixture(scope="module")
def drawn() -> torch.Tensor:
    return KeyStream().normal((1000, N // 1000))


def test_moments(drawn: torch.Tensor) -> None:
    """Of n draws the mean of z^k has variance (E z^2k - (E z^k)^2) / n: 1, 2, 15 and 96 over n."""
    assert (drawn.shape, drawn.dtype) == ((1000, 1000), torch.float64)
    z = drawn
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(float((z**power).mean()) - mean) < FAR * math.sqrt(variance / N)


def test_the_distribution(drawn: torch.Tensor) -> None:
    """Kolmogorov and Smirnov's D exceeds x / sqrt(n) with probability 2 exp(-2 x^2), 5e-8 at x = 2.958."""
    cdf = torch.special.ndtr(drawn.flatten().sort().values)
    steps = torch.arange(N + 1, dtype=torch.float64) / N
    apart = torch.maximum((cdf - steps[:-1]).max(), (steps[1:] - cdf).max())
    assert float(apart) < 2.958 / math.sqrt(N)


@pytest.mark.parametrize("beyond", [2.0, 3.0, 4.0, 4.5])
def test_both_tails(drawn: torch.Tensor, beyond: float) -> None:
    p = math.erfc(beyond / math.sqrt(2)) / 2
    for tail in (drawn > beyond, drawn < -beyond):
        assert binom.ppf(RARELY / 2, N, p) <= int(tail.sum()) <= binom.isf(RARELY / 2, N, p)


def test_neighbours_have_nothing_in_common(drawn: torch.Tensor) -> None:
    z = drawn.flatten()
    assert abs(float((z[1:] * z[:-1]).mean())) < FAR / math.sqrt(N)


def test_no_call_repeats_another_and_no_generator_is_touched() -> None:
    def states() -> tuple[object, ...]:
        numpy = np.random.get_state()  # noqa: NPY002
        return torch.get_rng_state().tolist(), str(numpy), random.getstate()

    torch.manual_seed(0)
    before = states()
    one = KeyStream().normal((50,))
    assert states() == before
    torch.manual_seed(0)
    assert not set(one.tolist()) & set(KeyStream().normal((50,)).tolist())


@pytest.mark.parametrize(("byte", "extreme"), [(b"\0", -12.46196), (b"\xff", 0.0)])
def test_no_bits_give_infinity(
    monkeypatch: pytest.MonkeyPatch, byte: bytes, extreme: float
) -> None:
    """The smallest tail is 2^-53 of 2^-64, whose quantile is -12.46, the largest is 1/2."""
    monkeypatch.setattr(
        KeyStream, "words", lambda stream, count: np.frombuffer(byte * 8 * count, np.uint64)
    )
    assert KeyStream().normal((3,)).abs().tolist() == pytest.approx([abs(extreme)] * 3, abs=1e-4)


@pytest.mark.parametrize("power", [62.99, 60.0, 50.0])
def test_a_words_own_bits_reach_every_number_of_the_grid_to_3_8(power: float) -> None:
    """1 - 2 p in float64, and the next number that it can be: less than 2^-24 apart as quantiles."""
    within = 1 - 2.0 ** (power - 63)
    low, high = math.sqrt(2) * torch.erfinv(torch.tensor([within, within + 2.0**-53]).double())
    assert float(high - low) < 2.0**-24


@pytest.mark.parametrize("power", [50.0, 40.0, 20.0, 0.0, -20.0, -31.0])
def test_every_number_of_a_grid_of_two_to_the_minus_24_can_come(power: float) -> None:
    """Neighbouring tails, 2^power of 2^-64 and the next that can be drawn, have quantiles less than 2^-24 apart.

    Of tails below 2^50 / 2^64 there are 52 bits more: the last one is 11.1, beyond which is one draw of 2^94.
    """
    tail = np.array([2.0**power, 2.0**power + max(2.0**-52, np.spacing(2.0**power))])
    low, high = ndtri(tail * 2.0**-64)
    assert high - low < 2.0**-24
    if power == -31:
        assert low < -11.1
        assert 2 * tail[0] * 2.0**-64 <= 2.0**-94


def test_every_shape() -> None:
    for shape in ((), (0, 3), [2, 3]):
        assert KeyStream().normal(shape).shape == tuple(shape)


def test_long_draws_are_one_stream_and_no_block_is_another() -> None:
    z = KeyStream().normal((200_000,))
    assert len(set(z.tolist())) > 199_990


def test_a_stream_goes_on_and_a_fork_of_its_process_has_one_of_its_own() -> None:
    """Three draws in a process, and one in each of two children that were forked between them: no number twice."""
    stream, found = KeyStream(), list[float]()

    def drawn_by_child() -> list[float]:
        read, write = os.pipe()
        if not (child := os.fork()):
            os.write(write, stream.normal((4,)).numpy().tobytes())
            os._exit(0)
        os.waitpid(child, 0)
        return np.frombuffer(os.read(read, 32)).tolist()

    found += stream.normal((4,)).tolist()
    found += drawn_by_child() + drawn_by_child()
    found += stream.normal((4,)).tolist()
    assert len(set(found)) == 16


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_stream_is_neither_copied_nor_stored(copied: Callable[[object], object]) -> None:
    stream = KeyStream()
    stream.normal((1,))
    with pytest.raises(TypeError, match="one process and one round"):
        copied(stream)


# ---- Poisson samples ----------------------------------------------------------------------------------


def sample(count: int, rate: float) -> torch.Tensor:
    words = np.frombuffer(os.urandom(8 * count), np.uint64)
    return (uniform_of(words) < rate).nonzero().flatten()


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
