"""The columns of a table that a run names, so that every site reads the same from its own file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from common.settings.images import class_name

OTHER = "other"
"""The name under which categories count that the run does not name; it does not reveal which one it is."""


MOST_COLUMNS = 10_000
"""The most columns of a table, and the most channels of a series."""


@dataclass(frozen=True)
class Column:
    """One column: numbers, or categories, each of which becomes a separate number, 0 or 1."""

    name: str
    categories: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of its inputs to a model: the number, or ``name=category`` and ``name=other``."""
        if not self.categories:
            return (self.name,)
        return tuple(f"{self.name}={category}" for category in (*self.categories, OTHER))

    @property
    def written(self) -> str:
        """The column as ``data.columns`` names it."""
        return f"{self.name}:{'|'.join(self.categories)}" if self.categories else self.name

    def one_hot(self, category: str) -> list[float]:
        """Return a row's numbers: 1 for its category, or for ``other``, and 0 for the rest."""
        known = category if category in self.categories else OTHER
        return [float(name == known) for name in (*self.categories, OTHER)]


@lru_cache(maxsize=64)
def agreed_columns(text: str) -> tuple[Column, ...]:
    """Read ``data.columns``: names with commas between them, ``NAME:a|b`` for one of categories; else ValueError."""
    found = tuple(map(_column, text.split(","))) if text else ()
    _refuse_twice([column.name for column in found], "data.columns names a column")
    _refuse_twice(inputs_of(found), "data.columns makes a column")
    return found


def inputs_of(columns: Sequence[Column]) -> list[str]:
    """Return the names of all numbers that a model is given of a row, in their order."""
    return [name for column in columns for name in column.inputs]


def _column(text: str) -> Column:
    name, parted, named = text.rpartition(":") if "|" in text else (text, "", "")
    categories = tuple(map(class_name, named.split("|"))) if parted else ()
    if "|" in text and not parted:
        raise ValueError(f"data.columns has {text!r}: write NAME:a|b for a column of categories")
    name = class_name(name)
    if not name or "" in categories:
        raise ValueError("data.columns has a name that is empty: leave out the comma or the bar")
    if OTHER in categories:
        raise ValueError(
            f"data.columns names {OTHER!r} in {name!r}, under which unnamed categories count: leave it out"
        )
    _refuse_twice(categories, f"data.columns names in {name!r} a category")
    return Column(name, categories)


def _refuse_twice(names: Sequence[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{what} {name!r} twice: name each once")
        seen.add(name)
