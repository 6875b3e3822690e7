"""What is usual among many updates is found by one sorting, and is the lower median of the others."""

from __future__ import annotations

import random
from statistics import median_low

import pytest

from strategies.plausible import _median_of_the_others, too_long


@pytest.mark.parametrize("number", [2, 3, 4, 7, 16, 33])
def test_it_is_the_lower_median_of_the_others(number: int) -> None:
    draw = random.Random(number)
    values = [draw.choice([0.5, 1.0, 2.0, 2.0, 7.0, float("inf")]) for _ in range(number)]
    for i, value in enumerate(values):
        others = [*values[:i], *values[i + 1 :]]
        assert _median_of_the_others(sorted(values), value) == median_low(others)


def test_it_is_said_from_the_first_that_is_asked_about() -> None:
    lengths = [1.0, 1.0, 1.0, 500.0, 2.0]
    assert (
        too_long(lengths, own=1.0, factor=100.0, known=3)
        == (too_long(lengths, own=1.0, factor=100.0)[3:])
    )
    assert [bool(said) for said in too_long(lengths, 1.0, 100.0)] == [0, 0, 0, 1, 0]
