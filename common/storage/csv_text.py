"""Comma-separated text in which a spreadsheet finds no formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

_BEGINS_A_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_text(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a line of names and a line a row, with a comma between cells."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([plain(cell) for cell in row] for row in (head, *rows))
    return text.getvalue()


def plain(cell: Any) -> Any:
    """Return a cell that no spreadsheet computes: before a text that begins as a formula does stands an apostrophe."""
    if isinstance(cell, str) and cell.startswith(_BEGINS_A_FORMULA) and not _is_number(cell):
        return f"'{cell}"
    return cell


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
