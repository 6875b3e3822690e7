"""Which cases of a sweep the README's test command runs; CI runs them all."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

FEDAVG_VARIANTS = ("fedprox", "fednova", "feddyn", "fedpvr", "moon")
"""Methods that differ from FedAvg in a term of the local loss or a weight of the mean: ``long`` in most sweeps."""


def only_these_first(cases: Iterable[Any], *first: Any, long: Collection[Any] = ()) -> list[Any]:
    """Return the cases, those beside ``first`` marked ``extended``, those of ``long`` so beside that."""
    cases = list(cases)
    assert all(case in cases for case in (*first, *long)), (first, long)
    marks = {case: [pytest.mark.long] * (case in long) + [pytest.mark.extended] for case in cases}
    return [case if case in first else pytest.param(case, marks=marks[case]) for case in cases]
