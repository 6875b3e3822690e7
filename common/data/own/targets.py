"""Whether labels are classes: what looks measured is refused, and numbers that leave some out are coded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from common.data.store import Stored
from common.errors import DataError
from common.samples.class_names import number_of

#: more different numbers than this are taken for measurements where so few rows have each, on average
_FEW, _ROWS = 20, 10

_DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}( .*)?")


def as_classes(stored: Stored, name: str, *, measured: bool) -> Stored:
    """Return a set whose labels are coded as a table's are, unless it names its classes: from 0, none left out.

    Raises
    ------
    DataError
        If the labels look measured and these are not taken: why, and what to do.
    """
    if stored.about.get("stated"):
        return stored
    labels = np.concatenate([stored.train.labels, stored.test.labels])
    there = np.unique(labels)
    names = [stored.about["classes"][label] for label in there]
    why = "" if measured else _looks_measured(names, len(labels))
    if why:
        raise DataError(
            f"{name}: its labels look like a measurement, not like classes ({why}): name another column (data.label), "
            "or write a few classes into it before, such as low and high; data.classes=labels takes every value as a "
            "class all the same"
        )
    if len(there) == len(stored.about["classes"]) or len(there) < 2:
        return stored
    train, test = (
        replace(split, labels=np.searchsorted(there, split.labels).astype(np.int64))
        for split in (stored.train, stored.test)
    )
    return replace(stored, train=train, test=test, about={**stored.about, "classes": names})


def _looks_measured(names: Sequence[str], rows: int) -> str:
    """Return what the values of labels look like, where that is not classes."""
    if 2 * sum(map(bool, map(_DATE.fullmatch, names))) > len(names):
        return "dates"
    numbers = [number for number in map(number_of, names) if number is not None]
    if any(number % 1 for number in numbers):
        return "numbers with a fraction"
    if len(numbers) == len(names) > _FEW and rows < _ROWS * len(names):
        return f"{len(names)} different numbers in {rows:,} rows"
    if len(names) > _FEW and rows < 2 * len(names):  # prices, times, percentages
        return f"{len(names)} different values in {rows:,} rows"
    return ""
