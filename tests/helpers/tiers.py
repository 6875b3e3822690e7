"""Which cases of a sweep the README's test command runs; CI runs them all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def only_these_first(cases: Iterable[Any], *first: Any) -> list[Any]:
    """Return the cases, those beside ``first`` marked ``extended``."""
    cases = list(cases)
    assert all(case in cases for case in first), first
    return [
        case if case in first else pytest.param(case, marks=pytest.mark.extended) for case in cases
    ]
