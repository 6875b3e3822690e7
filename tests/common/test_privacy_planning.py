"""Noise for an epsilon, and the rounds that a budget has left."""

from __future__ import annotations

import pytest
from exact_epsilon import gaussian

from common.privacy.accounting import epsilon
from common.privacy.events import Event
from nectar.operate.privacy_plan import noise_for, rounds_left

DELTA = 1e-5


@pytest.mark.parametrize(("rate", "steps"), [(1.0, 1), (1.0, 40), (0.05, 200)])
@pytest.mark.parametrize("target", [0.5, 3.0, 20.0])
def test_the_noise_is_enough_and_hardly_more(target: float, rate: float, steps: int) -> None:
    noise = noise_for(target, DELTA, rate, steps)
    assert epsilon([Event("a", noise, rate, steps)], DELTA).value <= target
    assert epsilon([Event("a", noise * 0.99, rate, steps)], DELTA).value > target


def test_the_noise_of_one_release_is_the_closed_forms() -> None:
    noise = noise_for(1.0, DELTA)
    assert gaussian(noise, DELTA) == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("wrong", [(0.0, 1.0, 1), (1.0, 0.0, 1), (1.0, 1.5, 1), (1.0, 1.0, 0)])
def test_what_no_noise_is_for(wrong: tuple[float, float, int]) -> None:
    with pytest.raises(ValueError, match="give an epsilon above 0"):
        noise_for(wrong[0], DELTA, wrong[1], wrong[2])


def test_no_noise_is_enough_for_next_to_nothing() -> None:
    with pytest.raises(ValueError, match="no noise up to 1e"):
        noise_for(1e-9, 1e-12, steps=10)


def test_the_rounds_that_are_left_fit_and_one_more_does_not() -> None:
    spent, each = [Event("b", 4.0)], Event("a", 2.0, 0.1, 10)
    left = rounds_left(spent, [each], 3.0, DELTA)
    assert left is not None
    assert left > 3
    assert epsilon([*spent, *[each] * left], DELTA).value <= 3.0
    assert epsilon([*spent, *[each] * (left + 1)], DELTA).value > 3.0


def test_a_budget_that_is_spent_and_a_round_that_costs_nothing() -> None:
    assert rounds_left([Event("a", 0.1)], [], 1.0, DELTA) == 0
    assert rounds_left([], [Event("a", 0.1)], 1.0, DELTA) == 0
    assert rounds_left([], [Event("a", 0.0, steps=0)], 1.0, DELTA) is None
    assert rounds_left([], [Event("a", 1e6)], 1.0, DELTA) is None
