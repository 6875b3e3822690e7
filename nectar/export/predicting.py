"""What an exported model says of pictures and rows without labels: a class and its score each, or what is wrong."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from common.data.folders.decode import Unreadable
from common.errors import DataError
from common.learning.compute import autocast
from common.samples.dataset import number_of
from common.storage.files import csv_text
from nectar.export.scoring import ExportedModel, read_picture

HEAD = ("input", "class", "score", "problem")
"""The columns of what is written."""

_UNREADABLE = "not UTF-8 text with commas between its cells"


@dataclass(frozen=True)
class Prediction:
    """The class that a model gives an input, and that class's share of the softmax; or why there is none."""

    name: str
    label: str = ""
    score: float = 0.0
    problem: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        """What stands under `HEAD`."""
        return self.name, self.label, "" if self.problem else f"{self.score:.6g}", self.problem


Given = tuple[str, Tensor | str]
"""An input's name, and its raw values [C, H, W] or what is wrong with it."""


def inputs_of(path: Path, exported: ExportedModel) -> Iterator[Given]:
    """Yield each input of ``path``, for a model of pictures a folder or a picture, for one of rows a CSV.

    Raises
    ------
    DataError
        If nothing is there, or the CSV lacks one of the model's columns.
    """
    if exported.kind == "images":
        yield from _pictures(path, exported)
    else:
        yield from _rows(path, exported)


def _pictures(path: Path, exported: ExportedModel) -> Iterator[Given]:
    if not path.exists():
        raise DataError(f"there is no {path}: give a picture, or a folder of pictures")
    files = [path]
    if path.is_dir():
        below = sorted(path.rglob("*"))
        hidden = [one for one in below if any(p[0] == "." for p in one.relative_to(path).parts)]
        files = [one for one in below if one.is_file() and one not in set(hidden)]
    if not files:
        raise DataError(f"{path} holds no files: put pictures into it")
    for file in files:
        name = file.relative_to(path).as_posix() if path.is_dir() else file.name
        try:
            yield name, read_picture(file, exported)
        except Unreadable as error:
            yield name, str(error)


def _rows(path: Path, exported: ExportedModel) -> Iterator[Given]:
    """Yield each line's values of the model's columns, which are found by name; other columns are left out."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, strict=True)
            head = [cell.strip() for cell in next(lines, [])]
            missing = [name for name in exported.cells if name not in head]
            if missing:
                raise DataError(
                    f"{path} lacks the column {missing[0]!r}"
                    f"{f' and {len(missing) - 1} more' if len(missing) > 1 else ''}: the model takes a CSV whose first "
                    f"line names {', '.join(exported.cells[:8])}{', ...' if exported.cells[8:] else ''}"
                )
            places = [head.index(name) for name in exported.cells]
            some = False
            for cells in filter(None, lines):
                some = True
                values = _values(cells, places, len(head), exported)
                yield f"line {lines.line_num}", values
            if not some:
                raise DataError(f"{path} has no row below the names of its columns")
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): give a CSV of rows") from None
    except (UnicodeDecodeError, csv.Error):
        raise DataError(f"{path} is {_UNREADABLE}: save it as such") from None


def _values(
    cells: list[str], places: Sequence[int], wanted: int, exported: ExportedModel
) -> Tensor | str:
    if len(cells) != wanted:
        return f"{len(cells)} cells where the first line has {wanted}"
    found = [number_of(cells[at]) for at in places]
    if None in found:
        return f"column {exported.cells[found.index(None)]!r}: not a finite number"
    return torch.tensor(found, dtype=torch.float64).view(exported.shape)


@torch.no_grad()
def predictions(
    exported: ExportedModel,
    given: Iterator[Given],
    device: torch.device,
    *,
    batch: int,
    precision: str = "float32",
) -> Iterator[Prediction]:
    """Yield what the model says of each input, in their order, ``batch`` of them at a time."""
    model = exported.network.to(device)
    while part := [one for _, one in zip(range(batch), given, strict=False)]:
        good = [values for _, values in part if not isinstance(values, str)]
        told = list[tuple[float, int]]()
        if good:
            with autocast(device, precision):
                outputs = model(exported.inputs(torch.stack(good).to(device)))
            scores, labels = outputs.float().softmax(1).max(1)
            told = list(zip(scores.tolist(), labels.tolist(), strict=True))
        for name, values in part:
            if isinstance(values, str):
                yield Prediction(name, problem=values)
            else:
                score, label = told.pop(0)
                yield Prediction(name, exported.classes[label], score)


def as_csv(found: Sequence[Prediction]) -> str:
    """Return predictions as a table."""
    return csv_text([*HEAD], (one.cells for one in found))
