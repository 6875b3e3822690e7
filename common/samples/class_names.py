"""Names of classes that are one class in two spellings, for all that a person can see."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

_SHOWN = 5


def alike(names: Sequence[str]) -> str:
    """Return a line that names classes equal but for case, blanks or the form of a number; nothing without any."""
    forms: dict[str, list[str]] = {}
    for name in names:
        forms.setdefault(_form(name), []).append(name)
    found = [f"{a!r} and {b!r}" for each in forms.values() for a, b in pairwise(each)]
    if not found:
        return ""
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return (
        f"ONE CLASS OR TWO? {', '.join(found[:_SHOWN])}{more} differ in case, blanks or the form of a number alone and "
        "count as different classes: write each class in one way everywhere"
    )


def number_of(text: str) -> float | None:
    """Return the finite number that a text is; None of any other, and of Python's own way to write one, 1_000."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None


def _form(name: str) -> str:
    plain = "".join(name.split()).casefold()
    number = number_of(plain)
    return plain if number is None else repr(number)
