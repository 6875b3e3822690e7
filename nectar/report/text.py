"""Figures as text: the same way in every table."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

MISSING = "–"


def share(value: Any) -> str:
    """Return an accuracy with four digits, or a dash."""
    return f"{value:.4f}" if is_number(value) else MISSING


def seconds(value: Any) -> str:
    """Return seconds with two digits, or a dash."""
    return f"{value:,.2f}" if is_number(value) else MISSING


def size(count: int) -> str:
    """Return bytes in the unit that suits."""
    for limit, unit, digits in ((1e9, "GB", 2), (1e6, "MB", 2), (1e3, "kB", 1)):
        if count >= limit:
            return f"{count / limit:,.{digits}f} {unit}"
    return f"{count} bytes"


def number(value: Any) -> float:
    """Return a figure as a float, NaN if there is none."""
    return float(value) if is_number(value) else math.nan


def is_number(value: Any) -> bool:
    """Tell a finite figure from a gap or a word."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= sys.float_info.max
    )


def total(account: Mapping[str, Any]) -> int:
    """Return the sum of what is counted by site."""
    return sum(int(value) for value in account.values() if is_number(value))


def aligned(rows: Sequence[Sequence[str]], *, right: bool = True) -> str:
    """Return rows of equal length in columns, a line each: the first to the left, the others ``right`` or left too."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = (
        [
            c.rjust(w) if i and right else c.ljust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    )
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def plain(text: str) -> str:
    """Return what others wrote, which must not steer the terminal."""
    return text if text.isprintable() else ascii(text)


def capital(text: str) -> str:
    """Return a text as a sentence begins with it."""
    return text[:1].upper() + text[1:]


def plural(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
