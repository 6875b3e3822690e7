"""Figures as text: the same in every table, page and sentence."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MISSING = "–"

Cell = str | tuple[str, str]
"""A cell's text, alone or with the name of its looks on a page; of ``bar`` the text is a width in percent."""


class Table(NamedTuple):
    """A table; a row's first cell names it."""

    caption: str
    head: Sequence[Cell]
    rows: Sequence[Sequence[Cell]]
    foot: Sequence[str] = ()


def share(value: Any) -> str:
    """Return an accuracy with four digits, or a dash."""
    return f"{value:.4f}" if is_number(value) else MISSING


def seconds(value: Any) -> str:
    """Return seconds with two digits, or a dash."""
    return f"{value:,.2f}" if is_number(value) else MISSING


def short(value: Any, unit: str = "") -> str:
    """Return a figure with three digits, or all before the point, and its unit; or a dash."""
    if not is_number(value):
        return MISSING
    text = f"{value:,.0f}" if abs(value) >= 99.5 else f"{value:.3g}"
    return f"{text} {unit}" if unit else text


def count(value: float) -> str:
    """Return a mean count, to one digit after the point where it has one, or a dash."""
    return f"{value:.1f}".removesuffix(".0") if is_number(value) else MISSING


def size(value: Any) -> str:
    """Return bytes in the unit that suits, a power of 1000, or a dash."""
    units = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
    unit, amount = next((u for u in units if is_number(value) and value >= u[1]), ("B", 1.0))
    return short(value / amount if is_number(value) else None, unit)


def number(value: Any) -> float:
    """Return a figure as a float, or NaN if it is missing."""
    return float(value) if is_number(value) else math.nan


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= sys.float_info.max
    )


def total(account: Mapping[str, Any]) -> int:
    """Return the sum of what is counted by site."""
    return sum(int(value) for value in account.values() if is_number(value))


def aligned(rows: Sequence[Sequence[Any]], *, right: bool = True) -> str:
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
