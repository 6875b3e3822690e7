"""``data.file=x.csv``: a table as text, of which one column names each row's class."""

from __future__ import annotations

import csv
import logging
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from common.data.own.rows import MOST_COLUMNS, check_printed
from common.errors import DataError
from common.samples.class_names import number_of

MOST_BYTES, MOST_ROWS, MOST_VALUES = 256 * 2**20, 1_000_000, 50_000_000
"""The largest file, the most rows and the most numbers in all that are read."""

log = logging.getLogger("flwr")

#: what stands in a cell where a value is missing, in capitals; in a column of classes the last ones may be names
_NO_CLASS = ("", "NA", "NAN", "?")
_MISSING = (*_NO_CLASS, "N/A", "NULL", "NONE", "-")


def read_table(path: Path, label: str, group: str = "", *, named: bool = True) -> dict[str, Any]:
    """Return the rows, their classes' names and the columns' names.

    Cells are numbers with a decimal point, and anything in the column ``label``. What is wrong is told by its line
    and column, never by what stands there.

    Parameters
    ----------
    path : Path
        UTF-8, with or without a byte order mark; commas between cells; names of the columns in the first line.
    label : str
        The column of the classes.
    group : str
        The column of what belongs together; nothing for none.
    named : bool
        Whether the first line names the columns; else they are called 0, 1, 2, ...

    Returns
    -------
    dict
        ``train_images`` float64 [n, columns], ``train_labels`` text [n], ``columns`` list of str; ``train_groups``
        text [n] where they are asked for.

    Raises
    ------
    DataError
        If it is not such a file, or larger than what is read.
    """
    try:
        return _read(path, _Table(path, label, group, named))
    except DataError as error:
        # the server named the file, and the names of its columns are the site's
        raise DataError(
            str(error),
            told="data.file is not a table that can be read with this data.label: this site's log says why",
        ) from error


def _read(path: Path, table: _Table) -> dict[str, Any]:
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise DataError(
                f"{path} has {size / 2**20:.0f} MiB, of which {MOST_BYTES >> 20} are read at the most: save it as .npz"
            )
        with path.open(encoding="utf-8-sig", newline="") as file:
            return table.read(csv.reader(file, strict=True))
    except OSError as error:
        raise DataError(f"data.file={path} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text in UTF-8: save it as such") from None


@dataclass(frozen=True)
class _Table:
    path: Path
    label: str
    group: str
    named: bool

    def read(self, reader: Any) -> dict[str, Any]:
        lines = self._lines(reader)
        first = next(lines, [])
        head = [cell.strip() for cell in first]
        if not self.named:
            head, lines = [*map(str, range(len(first)))], chain([first], lines)
        self._check_head(head)
        place = self._place(head, "label", self.label, "the one of the classes")
        beside = (
            self._place(head, "group", self.group, "whom rows belong to") if self.group else place
        )
        if self.group and beside == place:
            raise DataError(f"data.group={self.group} is data.label too: name another column")
        apart = sorted({place, beside}, reverse=True)
        columns = [name for at, name in enumerate(head) if at not in apart]
        if not columns:
            raise DataError(
                f"{self.path} has no column of numbers beside data.label and data.group"
            )
        values, classes, groups = array("d"), list[str](), list[str]()
        for cells in lines:
            where = f"{self.path}, line {reader.line_num}"
            if len(cells) != len(head):
                raise DataError(
                    f"{where}: {len(cells)} cells where the first line names {len(head)}"
                )
            if len(classes) == MOST_ROWS or len(values) > MOST_VALUES:
                raise DataError(
                    f"{self.path} has more than {MOST_ROWS:,} rows, or {MOST_VALUES:,} numbers: save it as .npz"
                )
            classes.append(_class(cells[place], where, self.label))
            if self.group:
                groups.append(_class(cells[beside], where, self.group, "group"))
            for at in apart:
                del cells[at]
            values.extend(_numbers(cells, columns, where))
        if not classes:
            raise DataError(f"{self.path} has no row below the names of its columns")
        table = np.frombuffer(values, dtype=np.float64).reshape(len(classes), len(columns))
        found = {"train_images": table, "train_labels": np.array(classes), "columns": columns}
        return found | ({"train_groups": np.array(groups)} if self.group else {})

    def _lines(self, reader: Any) -> Iterator[list[str]]:
        """Yield the lines that have something in them."""
        try:
            for cells in reader:
                if cells:
                    yield cells
        except csv.Error as error:
            raise DataError(
                f"{self.path}, line {reader.line_num}: not comma-separated text ({error})"
            ) from None

    def _check_head(self, head: list[str]) -> None:
        if len(head) > MOST_COLUMNS:
            raise DataError(
                f"{self.path} has {len(head):,} columns, of which {MOST_COLUMNS:,} are read at the most"
            )
        if len(head) == 1 and any(mark in head[0] for mark in ";\t|"):
            raise DataError(
                f"{self.path} has something else than commas between its cells: save it with commas, and with points "
                "in its numbers"
            )
        check_printed(head, f"{self.path}, line 1")
        if "" in head:
            raise DataError(
                f"{self.path}: column {head.index('') + 1} has no name in the first line: name it, or leave it out "
                "(of pandas, to_csv(index=False))"
            )
        twice = next((name for at, name in enumerate(head) if name in set(head[:at])), None)
        if twice is not None:
            raise DataError(f"{self.path} names two columns {twice!r}: give each a name of its own")
        if len(head) < 2:
            raise DataError(
                f"{self.path} needs a column of classes and at least one of numbers, with their names in the first line"
            )

        if None not in map(number_of, head) and head != [*map(str, range(len(head)))]:
            raise DataError(
                f"{self.path}, line 1, has numbers alone, and should name the columns: add a line of names, or set "
                f"{self._no_header(head)}"
            )
        if self.named and 2 * sum(number_of(c) is not None and "." in c for c in head) > len(head):
            log.warning(
                "%s, line 1: taken for the names of the columns, and most are numbers: if it is a row, set %s",
                *(self.path, self._no_header(head)),
            )

    def _no_header(self, head: list[str]) -> str:
        return f"data.header=none, with which the columns are called 0 to {len(head) - 1}"

    def _place(self, head: list[str], key: str, name: str, what: str) -> int:
        if name in head:
            return head.index(name)
        near = get_close_matches(name, head, n=1) or head[-1:]
        row = self.named and any(number_of(cell) is not None for cell in head)
        raise DataError(
            f"{self.path} has no column {name!r}: data.{key} names {what}, such as "
            f"data.{key}={near[0]}{f'; if line 1 is a row, set {self._no_header(head)}' if row else ''}"
        )


def _class(cell: str, where: str, column: str, what: str = "class") -> str:
    name = cell.strip()
    if name.upper() in _NO_CLASS:
        raise DataError(f"{where}: no {what} in column {column!r}: leave the row out, or name one")
    check_printed([name], where)
    return name


def _numbers(cells: list[str], columns: list[str], where: str) -> list[float]:
    """Return the numbers in a line's cells; every one is finite."""
    try:
        found = list(map(float, cells))
    except ValueError:
        found = []
    # float() takes 1_000 for a number, and NaN and infinity by their names
    if len(found) == len(cells) and np.isfinite(found).all() and "_" not in "".join(cells):
        return found
    for cell, column in zip(cells, columns, strict=True):
        said = f"{where}, column {column!r}"
        if cell.strip().upper() in _MISSING:
            raise DataError(
                f"{said}: a value is missing: fill it in, or leave the row out, before (scikit-learn's SimpleImputer, "
                "docs/data.md)"
            )
        if number_of(cell) is None:
            raise DataError(
                f"{said}: not a finite number: leave the column out, or write its categories as numbers before "
                "(scikit-learn's OneHotEncoder, docs/data.md)"
            )
    raise AssertionError("a cell of the line was none")
