"""Rows of a table and series: read from a CSV, checked, brought to one form, and shown as text."""

from __future__ import annotations

import csv
import logging
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.config.text import scalar_text
from common.data.store import Stored
from common.errors import DataError, RowsError, nearest
from common.samples.dataset import REACH, Dataset, DatasetInfo, number_of
from common.settings.columns import MOST_COLUMNS, OTHER, Column, agreed_columns, inputs_of
from common.settings.images import ImagesSettings, class_name
from common.settings.sections import DataSettings
from common.storage.files import csv_text

log = logging.getLogger("flwr")

Rows = Literal["table", "series"]

FORMS: dict[Rows, str] = {"table": "[n, columns]", "series": "[n, channels, steps]"}

_MISSING = (
    "fill in or leave out what is missing before (docs/data.md has scikit-learn's line for it)"
)
#: what float32 holds of normalised values with room for sums of their squares
_LARGEST = 1e15


def rows_of(
    array: NDArray[np.generic], kind: Rows, what: str, axes: str = "auto"
) -> NDArray[np.float64]:
    """Return rows [n, d] as [n, d, 1, 1], or series [n, c, t] as [n, c, 1, t]; by ``axes`` they may be [n, t, c]."""
    if array.ndim != (2 if kind == "table" else 3):
        raise DataError(
            f"{what} has shape {array.shape}: it must be {FORMS[kind]} for data.kind={kind}"
        )
    if axes == "channels_last":
        array = array.swapaxes(1, 2)
    if 0 in array.shape[1:] or array.shape[1] > MOST_COLUMNS:
        parts = "columns" if kind == "table" else "channels"
        raise DataError(
            f"{what} has shape {array.shape}: 1 to {MOST_COLUMNS:,} {parts}, and no empty ones, are allowed"
        )
    values = array.astype(np.float64)
    if not np.isfinite(values).all():
        raise DataError(f"{what} holds NaN or infinity: {_MISSING}")
    steps = values.shape[2:] or (1,)
    return np.ascontiguousarray(values.reshape(*values.shape[:2], 1, *steps))


def columns_of(named: Mapping[str, Any], channels: int, what: str) -> list[str]:
    """Return the names of the columns; none where the set brings none, or raise DataError."""
    if "columns" not in named:
        return []
    names = [str(name).strip() for name in np.asarray(named["columns"], dtype=str).ravel()]
    check_printed(names, f"{what}: columns")
    if len(names) != channels:
        raise DataError(f"{what}: {len(names)} column names for {channels} columns")
    if "" in names or len(set(names)) < len(names):
        raise DataError(f"{what}: a column without a name, or two of one name")
    return names


def check_printed(names: list[str], what: str) -> None:
    """Refuse names that do not print, or are longer than anybody reads: DataError."""
    for name in names:
        if not name.isprintable() or len(name) > 200:
            raise DataError(
                f"{what}: a name of {len(name)} characters that is too long or does not print: give names of at most "
                "200 characters, without control characters"
            )


def info_of_rows(
    name: str, stored: Stored, classes: tuple[str, ...], images: ImagesSettings, data: DataSettings
) -> DatasetInfo:
    """Describe rows or series, by the public constants that the run's settings state, or else the set itself."""
    assert data.kind != "images"
    channels, steps = stored.train.images.shape[1], stored.train.images.shape[3]
    if data.kind == "series" and data.axes == "auto" and channels > steps:
        log.warning(
            "%d channels of %d steps: are the axes [n, steps, channels]? Then set data.axes=channels_last, else "
            "data.axes=steps_last",
            *(channels, steps),
        )
    about, shape = stored.about, stored.train.images.shape[1:]
    constants_of = _public(name, about, images, data, channels)
    columns = tuple(about.get("columns", ()))
    return _described(name, data.kind, shape, classes, constants_of, columns)


def info_of_columns(images: ImagesSettings, data: DataSettings) -> DatasetInfo:
    """Describe tables whose columns the run names (``data.columns``), of which no file is read.

    Constants are one number, or one for each column of numbers; what a category becomes, 0 or 1, a model is given.
    """
    columns = agreed_columns(data.columns)
    number = sum(not column.categories for column in columns)
    public = _public("data.columns", {}, images, data, number)
    spread = [
        _spread(values, columns, kept) if values or not number else ()
        for values, kept in zip(public, (0.0, 1.0, 0.0, 1.0), strict=True)
    ]
    inputs = tuple(inputs_of(columns))
    return _described("table", "table", (len(inputs), 1, 1), images.names, spread, inputs)


def _spread(values: Sequence[float], columns: Sequence[Column], kept: float) -> tuple[float, ...]:
    """Return constants of the columns of numbers as those of all inputs, ``kept`` for each of a category."""
    left = iter(values)
    return tuple(
        constant
        for column in columns
        for constant in ([kept] * len(column.inputs) if column.categories else [next(left)])
    )


def _described(
    name: str,
    kind: Rows,
    shape: tuple[int, ...],
    classes: tuple[str, ...],
    public: Sequence[tuple[float, ...]],
    columns: tuple[str, ...],
) -> DatasetInfo:
    """Return the description; DataError if values may exceed what a model learns from."""
    mean, std, low, high = public
    own: dict[str, Any] = {"arrays": kind, "low": low, "high": high, "columns": columns}
    info = DatasetInfo(name, shape, classes, mean, std, 1.0, **own)
    if not info.largest <= _LARGEST:
        raise DataError(
            f"{info.name}: its bounds are {info.largest:.3g} as a model would take them, {_LARGEST:g} at the most: "
            "choose data.scale=minmax"
        )
    return info


def _public(
    name: str,
    about: Mapping[str, Any],
    images: ImagesSettings,
    data: DataSettings,
    channels: int,
) -> tuple[tuple[float, ...], ...]:
    """Return each channel's mean, std, low and high, which are stated: none of them is computed of rows."""
    low, high = (constants(key, data, about, channels, name) for key in ("low", "high"))
    if bool(low) != bool(high) or any(a >= b for a, b in zip(low, high, strict=False)):
        raise DataError(
            f"{name}: data.low and data.high must both be there, and each low below its high"
        )
    keys = "data.low and data.high"
    if data.scale == "none":
        mean, std = (0.0,) * channels, (1.0,) * channels
    elif data.scale == "minmax":
        mean = tuple(a / 2 + b / 2 for a, b in zip(low, high, strict=True))
        std = tuple(b / 2 - a / 2 for a, b in zip(low, high, strict=True))
    else:
        mean, std = (constants(key, images, about, channels, name) for key in ("mean", "std"))
        keys = "images.mean and images.std"
    if not mean or not std:
        raise DataError(
            f"{name}: data.scale={data.scale} needs {keys}, one number or {channels} with commas between them, stated "
            "by you as what is public: they are never computed from the data, about which they would reveal something"
        )
    return mean, std, low, high


def constants(
    key: str,
    section: ImagesSettings | DataSettings,
    about: Mapping[str, Any],
    channels: int,
    name: str,
    *,
    needed: bool = False,
) -> tuple[float, ...]:
    """Return a constant of each channel, public and never taken from the data: the settings', or else the set's."""
    text = getattr(section, key)
    typed = text != type(section).model_fields[key].default or (needed and key not in about)
    try:
        values = [float(part) for part in (text.split(",") if typed else about.get(key, []))]
    except ValueError:
        values = [float("nan")]
    values *= channels if len(values) == 1 else 1
    usable = len(values) == channels and np.isfinite(values).all()
    if (values or needed) and not (usable and (key != "std" or min(values) > 0)):
        of = "images" if isinstance(section, ImagesSettings) else "data"
        where = f"{of}.{key}={text}" if typed else f"{name}: {key}"
        above = " above 0" if key == "std" else ""
        raise DataError(
            f"{where} must be one finite number{above}, or one for each of {channels} channels (of a table, columns)"
        )
    return tuple(values)


def check_reach(dataset: Dataset, scale: str) -> None:
    """Refuse rows and series whose values no model would learn from, if their bounds are not stated."""
    info = dataset.info
    if info.kind not in FORMS or info.low:
        return
    splits = (split for split in (dataset.train, dataset.test) if len(split))
    raw = (split.images.astype(np.float64) for split in splits)
    ends = [[values.min((0, 2, 3)), values.max((0, 2, 3))] for values in raw]
    beyond = (abs((np.array(ends) - info.mean) / info.std) > REACH).any((0, 1))
    if beyond.any():
        raise RowsError(
            f"{info.name}: column {column_names(info)[int(beyond.argmax())]!r} has values beyond {REACH:g} with "
            f"data.scale={scale}, from which no model learns well: set data.scale=minmax with data.low and data.high, "
            "or data.scale=standard with images.mean and images.std (public constants, docs/data.md; `nectar data` "
            "shows what the columns hold)",
            reported=f"its table has values beyond {REACH:g} with data.scale={scale}, too large to learn from: run "
            "with data.scale=minmax, data.low and data.high, or data.scale=standard, images.mean and images.std",
        )


# ---- table file ----------------------------------------------------------------------------------
# ``data.file=x.csv``: a table as text, of which one column names each row's class.

MOST_BYTES, MOST_ROWS, MOST_VALUES = 256 * 2**20, 1_000_000, 50_000_000
"""The largest file, the most rows and the most numbers in all that are read."""

#: rows whose cells are numbers at a time: all of them as text would be many times as large
_BLOCK = 10_000

#: the content of a cell whose value is missing, in capitals; in a column of classes the last ones may be names
_NO_CLASS = ("", "NA", "NAN", "?")
_MISSING_CELLS = (*_NO_CLASS, "N/A", "NULL", "NONE", "-")

#: what is wrong with a cell, and how it is reported to another machine
_MISSING_CELL, _NO_NUMBER = "a value is missing", "not a finite number"
_TOLD = {
    _MISSING_CELL: "lacks a value",
    _NO_NUMBER: "has something else than a finite number, with a decimal point,",
}
_BEFORE = (
    "before, fill in or leave out what is missing and write categories as numbers (scikit-learn's SimpleImputer, "
    "OneHotEncoder, docs/data.md)"
)

#: so many columns that are missing are named, and so many faults
_FEW_MISSING, _FEW_FAULTS = 3, 10


def read_rows(
    path: Path,
    label: str,
    group: str = "",
    *,
    named: bool = True,
    columns: Sequence[Column] = (),
    of: str = "group",
) -> dict[str, Any]:
    """Return ``train_images`` float64 [n, columns], ``train_labels`` text [n], ``columns``, perhaps ``train_groups``.

    Cells are numbers with a decimal point, and anything in the column ``label`` and in those of categories. What is
    wrong is named by line and column, never by content. Other machines get only what the run named of it.
    """
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise DataError(
                f"{path} has {size / 2**20:.0f} MiB, of which {MOST_BYTES >> 20} are read at the most: save it as .npz"
            )
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            return _Table(path, label, group, named, tuple(columns), of).read(reader)
    except OSError as error:
        raise DataError(f"data.file={path} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise RowsError(
            f"{path} is not text in UTF-8: save it as such",
            reported="its table is not text in UTF-8: its owner saves it as such",
        ) from None
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.line_num}: not comma-separated text ({error})"
        ) from None


@dataclass(frozen=True)
class _Table:
    path: Path
    label: str
    group: str
    named: bool
    asked: tuple[Column, ...]
    of: str

    def read(self, reader: Any) -> dict[str, Any]:
        filled = filter(None, reader)
        first: list[str] = next(filled, [])
        head = [*map(class_name, first)] if self.named else [*map(str, range(len(first)))]
        self._check_head(head)
        label = self._place(head, "label", self.label, "the one of the classes")
        own = [(label, self.label, "no class")]
        if self.group:
            group = self._place(head, self.of, self.group, "whom rows belong to")
            if group == label:
                raise DataError(
                    f"data.{self.of}={self.group} is data.label too: name another column"
                )
            own.append((group, self.group, f"no {self.of}"))
        columns = self._columns(head, {place for place, _, _ in own})
        if not columns:
            raise DataError(
                f"{self.path} has no column of numbers besides data.label and data.{self.of}"
            )
        every = filled if self.named else chain([first], filled)
        rows = self._rows(reader, every, len(head), len(inputs_of(columns)))
        return self._read(rows, own, [(head.index(c.name), c) for c in columns])

    def _read(
        self,
        rows: Iterator[tuple[int, list[str]]],
        own: Sequence[tuple[int, str, str]],
        columns: Sequence[tuple[int, Column]],
    ) -> dict[str, Any]:
        """Return what the rows hold, of the classes' and the groups' columns and of those that are read."""
        faults = dict[tuple[str, str], list[int]]()

        def note(line: int, column: str, what: str) -> None:
            faults.setdefault((column, what), [line, 0])[1] += 1

        parts, held = [], [list[str]() for _ in own]
        while block := list(islice(rows, _BLOCK)):
            lines, by_row = zip(*block, strict=True)
            cells = list(zip(*by_row, strict=True))
            for (place, column, what), names in zip(own, held, strict=True):
                for line, cell in zip(lines, cells[place], strict=True):
                    names.append(cell.strip())
                    check_printed(names[-1:], f"{self.path}, line {line}")
                    if names[-1].upper() in _NO_CLASS:
                        note(line, column, what)
            read = [_numbers(cells[place], column) for place, column in columns]
            for (place, of), numbers in zip(columns, read, strict=True):
                for row in np.flatnonzero(np.isnan(numbers[:, 0])):
                    missing = _is_missing(cells[place][row])
                    note(lines[row], of.name, _MISSING_CELL if missing else _NO_NUMBER)
            parts.append(np.hstack(read))
        named = [column for _, column in columns]
        if faults:
            raise self._faulty(faults, named, {*held[0]})
        if not held[0]:
            raise RowsError(
                f"{self.path} has no row below the names of its columns",
                reported="its table has no row",
            )
        table, labels = np.concatenate(parts), np.array(held[0])
        self._tell_of_others(table, named)
        found = {"train_images": table, "train_labels": labels, "columns": inputs_of(named)}
        return found | ({"train_groups": np.array(held[1])} if self.group else {})

    def _rows(
        self, reader: Any, filled: Iterable[list[str]], width: int, inputs: int
    ) -> Iterator[tuple[int, list[str]]]:
        """Yield the line and the cells of each row, as many as the first line has."""
        for rows, cells in enumerate(filled):
            if len(cells) != width:
                raise DataError(
                    f"{self.path}, line {reader.line_num}: {len(cells)} cells where the first line names {width}"
                )
            if rows == MOST_ROWS or rows * inputs > MOST_VALUES:
                raise DataError(
                    f"{self.path} has more than {MOST_ROWS:,} rows, or {MOST_VALUES:,} numbers: save it as .npz"
                )
            yield reader.line_num, cells

    def _tell_of_others(self, table: NDArray[np.float64], columns: Sequence[Column]) -> None:
        """Log how often an unknown category counts as another one, which a typo in its name does too."""
        ends = np.cumsum([len(column.inputs) for column in columns])
        for column, end in zip(columns, ends, strict=True):
            if column.categories and (count := int(table[:, end - 1].sum())):
                log.warning(
                    "%s, column %r: %d of %d rows have a category that data.columns does not name, and count as %r",
                    *(self.path, column.name, count, len(table), OTHER),
                )

    def _faulty(
        self,
        faults: Mapping[tuple[str, str], Sequence[int]],
        columns: Sequence[Column],
        classes: set[str],
    ) -> RowsError:
        """Return an error that names all faults, and the words with which the columns without any are read."""
        by_line = sorted(faults.items(), key=lambda fault: fault[1][0])
        parts = [
            f"line {line}, column {name!r}: {what}{f' in {rows} rows' if rows > 1 else ''}"
            for (name, what), (line, rows) in by_line
        ]
        more = f"; and {len(parts) - _FEW_FAULTS} more" if len(parts) > _FEW_FAULTS else ""
        bad = {name for name, _ in faults}
        sound = [c.written for c in columns if c.name not in bad and not {*c.name} & {*",|"}]
        words = [f"data.columns={scalar_text(','.join(sound))}"]
        if not self.asked:
            words.append(f"images.classes={scalar_text(','.join(sorted(classes)))}")
        named = len(classes) <= _FEW_FAULTS and "," not in "".join(classes)
        works = named and sound and not bad & {self.label, self.group}
        reported = [
            f"its table {_TOLD[what]} in the column {name!r}"
            for (name, what), _ in by_line
            if what in _TOLD
        ]
        return RowsError(
            f"{self.path}, {'; '.join(parts[:_FEW_FAULTS])}{more}: {_BEFORE}"
            + (f"; the other columns are read with {shlex.join(words)}" if works else ""),
            reported=reported[0] if reported else "",
        )

    def _columns(self, head: list[str], excluded: set[int]) -> list[Column]:
        """Return the columns that are read: those requested, or all but the classes' and the groups'."""
        if not self.asked:
            return [Column(name) for at, name in enumerate(head) if at not in excluded]
        missing = [column.name for column in self.asked if column.name not in head]
        if missing:
            few = ", ".join(map(repr, missing[:_FEW_MISSING]))
            more = f" and {len(missing) - _FEW_MISSING} more" if len(missing) > _FEW_MISSING else ""
            near = [name for one in missing if (name := nearest(one, head, 0.6))]
            like = f"; it has {', '.join(map(repr, near[:_FEW_MISSING]))}" if near else ""
            raise DataError(
                f"{self.path} lacks {few}{more} of the columns that the run names (data.columns){like}: name the "
                "file's so, or have the run leave them out",
                reported=f"its table lacks {few}{more} of the columns that data.columns names",
            )
        taken = {column.name for column in self.asked}
        unread = [name for at, name in enumerate(head) if name not in taken and at not in excluded]
        if unread:
            log.info("%s: not read, since data.columns does not name it: %s", self.path, unread)
        return [*self.asked]

    def _check_head(self, head: list[str]) -> None:
        if len(head) > MOST_COLUMNS:
            raise DataError(
                f"{self.path} has {len(head):,} columns, of which {MOST_COLUMNS:,} are read at the most"
            )
        if len(head) == 1 and any(mark in head[0] for mark in ";\t|"):
            raise DataError(
                f"{self.path} has something else than commas between its cells: save it with commas, and with points "
                "in its numbers",
                reported="its table does not have commas between its cells: its owner saves it with commas, and "
                "with points in its numbers",
            )
        check_printed(head, f"{self.path}, line 1")
        if "" in head:
            raise DataError(
                f"{self.path}: column {head.index('') + 1} has no name in the first line: name it, or leave it out "
                "(of pandas, to_csv(index=False))"
            )
        twice = next((name for at, name in enumerate(head) if name in set(head[:at])), None)
        if twice is not None:
            raise DataError(f"{self.path} names two columns {twice!r}: give each its own name")
        if len(head) < 2:
            raise DataError(
                f"{self.path} {'' if head else 'is empty: it '}needs a column of classes and at least one of numbers, "
                "with their names in the first line",
                reported="" if head else "its table is empty",
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
        name = class_name(name)
        if name in head:
            return head.index(name)
        near = nearest(name, head, 0.6) or head[-1]
        row = self.named and any(number_of(cell) is not None for cell in head)
        raise DataError(
            f"{self.path} has no column {name!r}: data.{key} names {what}, such as "
            f"data.{key}={near}{f'; if line 1 is a row, set {self._no_header(head)}' if row else ''}",
            reported=f"its table lacks the column {name!r} that data.{key} names",
        )


def _is_missing(cell: str) -> bool:
    return cell.strip().upper() in _MISSING_CELLS


def _numbers(cells: Sequence[str], column: Column) -> NDArray[np.float64]:
    """Return a column's inputs to a model, [n, inputs]; NaN where a cell cannot be read."""
    if not column.categories:
        return np.array([*map(number_of, cells)], dtype=np.float64)[:, None]
    found = np.array([column.one_hot(class_name(cell)) for cell in cells])
    lacking = [_is_missing(cell) for cell in cells]
    found[lacking & (found[:, -1] == 1)] = math.nan  # unless a category is called so
    return found


# ---- row text ------------------------------------------------------------------------------------
# Rows of a table and series as they are read by people: raw values under the columns' names, as text.


def raw_values(given: Tensor, info: DatasetInfo) -> NDArray[np.float64]:
    """Return the raw values [n, C, 1, T] of rows or series as a model takes them."""
    mean, std = (np.array(each)[:, None, None] for each in (info.mean, info.std))
    values: NDArray[np.float64] = given.detach().cpu().double().numpy() * std + mean
    return values


def rounded_as_csv(given: Tensor, info: DatasetInfo) -> Tensor:
    """Return rows or series as a model takes them, of the digits that ``csv_of_rows`` writes of each number."""
    mean, std = (np.array(each)[:, None, None] for each in (info.mean, info.std))
    read = np.vectorize(lambda value: float(f"{value:.7g}"))(raw_values(given, info))
    return torch.from_numpy((read - mean) / std).float()


def column_names(info: DatasetInfo) -> tuple[str, ...]:
    """Return the names of the columns, or of a series' channels; else their numbers, from 1."""
    return info.columns or tuple(str(place + 1) for place in range(info.shape[0]))


def cell_names(names: Sequence[str], kind: str, steps: int) -> tuple[str, ...]:
    """Return the names of a line's cells: the columns', or of a series ``channel[step]``, steps counted from 0."""
    if kind != "series":
        return tuple(names)
    return tuple(f"{name}[{step}]" for name in names for step in range(steps))


def csv_of_rows(given: Tensor, labels: Sequence[str], info: DatasetInfo) -> str:
    """Return rows or series as a model takes them, with a label each, as comma-separated text in raw values.

    A series' line has its channels' steps one after the other, each under ``channel[step]``, counted from 0.
    """
    names = cell_names(column_names(info), info.kind, info.shape[2])
    values = raw_values(given, info).reshape(len(given), len(names))
    rows = ([label, *(f"{v:.7g}" for v in row)] for label, row in zip(labels, values, strict=True))
    return csv_text(["class", *names], rows)
