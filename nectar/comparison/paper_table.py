"""A paper's table as its file describes it: columns, rows with what is tuned in each, and the numbers it prints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from common.config import layers
from common.config.keys import show
from common.config.layers import names
from common.config.tables import TABLE, TableFile, experiments, read_table
from common.config.text import Scalar, read_yaml, scalar_text
from common.errors import ConfigError, near

PRINTED = Path(__file__).parent / "printed"
"""What the papers print, a file a table."""

FIGURES = ("accuracy", "floats", "rounds", "epsilon")
"""What a paper prints: accuracy in percent, floats sent up a round by all sites, rounds to an accuracy, epsilon."""

DRAWN = "drawn"
"""Stands for numbers that the paper shows only as a curve or a bar."""

_NUMBER = re.compile(r"(?P<text>(?P<value>\d+(\.\d+)?)?.*?)( \((?P<note>.*)\))?", re.DOTALL)


Text = Annotated[str, BeforeValidator(scalar_text)]


def _as_words(chosen: Mapping[str, Scalar]) -> tuple[str, ...]:
    return tuple(f"{key}={scalar_text(value)}" for key, value in chosen.items())


class TableRow(BaseModel):
    """A row, as the table's file has it.

    Parameters
    ----------
    run : str
        The method and its own settings, as ``nectar compare`` takes them; empty if that is the label.
    tune : mapping of str to tuple of str
        The values that were tried of each setting; the best by validation accuracy is taken.
    chosen : tuple of str
        What an earlier search of ours chose, as ``key=value``.
    rounds : int or None
        The row's own number of rounds.
    left_out : tuple of str
        Columns that do not have it (``except`` in the file).
    small : bool
        Whether it is among the rows of ``--small`` where none is named.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    label: str
    run: str = ""
    tune: dict[str, tuple[Text, ...]] = {}
    chosen: Annotated[tuple[str, ...], BeforeValidator(_as_words)] = ()
    rounds: int | None = None
    left_out: tuple[str, ...] = Field((), alias="except")
    small: bool = True

    def typed(self, *, tuned: bool, own_rounds: bool = True) -> str:
        """Return the row as it would be typed; one that is not tuned has what was chosen for it."""
        word = self.run or self.label
        settings = self.chosen if not tuned else ()
        if own_rounds and self.rounds is not None:
            settings = (*settings, f"rounds={self.rounds}")
        if settings:
            word += ("," if ":" in word else ":") + ",".join(settings)
        return word if word == self.label else f"{self.label}={word}"


@dataclass(frozen=True)
class Number:
    """A printed number: its text, its value if the text is a number, and a note on it."""

    text: str
    value: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Printed:
    """What a paper prints of one figure.

    Parameters
    ----------
    figure : str
        One of `FIGURES`.
    network : str
        The network of which it is the accuracy, or those over which it is the mean, as ``convnet, vit``; empty if
        each row has but one.
    targets : mapping of str to float
        By column the accuracy up to which rounds are counted.
    numbers : mapping of str to mapping of str to Number
        By column and row.
    """

    source: str
    figure: str
    network: str
    targets: Mapping[str, float]
    numbers: Mapping[str, Mapping[str, Number]]


@dataclass(frozen=True)
class PaperTable:
    """A table that can be compared with: ``columns`` are experiments by label.

    Parameters
    ----------
    refit : bool
        Whether the reported runs train on all images and have no validation split; searches have it.
    """

    name: str
    title: str
    columns: Mapping[str, str]
    rows: tuple[TableRow, ...]
    printed: tuple[Printed, ...]
    refit: bool = False

    @property
    def small(self) -> bool:
        """Whether each column has a small variant; every table is read for it."""
        known = experiments()
        return all(known[cell] for cell in self.columns.values())

    def target(self, column: str) -> float | None:
        """Return the accuracy up to which the paper counts a column's rounds; None if it counts none."""
        found = (float(block.targets[column]) for block in self.printed if column in block.targets)
        return next(found, None)


def read_paper_table(name: str) -> PaperTable:
    """Read a table by its name; ConfigError if the name is unknown or the file is not a valid table."""
    known = names(TABLE)
    if name not in known:
        raise ConfigError(
            f"{TABLE}={name!r} is unknown{near(name, known, several=True)}: `nectar config --help` lists all."
        )
    table = read_table(name)
    columns = {column.label: column.cell for column in table.columns}
    columns |= {cell: cell for cell in table.others}
    return PaperTable(
        name,
        title(TABLE, name),
        columns,
        tuple(_rows(table)),
        tuple(_printed(block, columns) for block in printed_blocks(name)),
        _refit(table),
    )


def printed_blocks(name: str) -> Sequence[Mapping[str, Any]]:
    """Return the printed numbers of a table, as their file has them. Unlike conf, they are never sent to a site."""
    path = PRINTED / f"{name}.yaml"
    if not path.is_file():
        return ()
    blocks: list[Mapping[str, Any]] = read_yaml(path, f"nectar/comparison/printed/{name}.yaml")[
        "printed"
    ]
    return blocks


def _refit(table: TableFile) -> bool:
    given = table.content.get("refit", False)
    if not isinstance(given, bool) and given not in ("on", "off"):
        raise ConfigError(f"refit in {table.source} must be on or off, not {show(given)}.")
    return given is True or given == "on"


def _rows(table: TableFile) -> Iterator[TableRow]:
    given = table.content.get("rows") or {}
    if isinstance(given, str):  # another table's
        yield from _rows(read_table(given))
        return
    for label, content in given.items():
        try:
            yield TableRow.model_validate({"label": label} | (content or {}))
        except ValidationError as error:
            (first, *_) = error.errors(include_url=False)
            where = ".".join(map(str, first["loc"]))
            raise ConfigError(
                f"{where} of row {label!r} in {table.source} is not valid in a row: {first['msg']}."
            ) from None


def _printed(block: Mapping[str, Any], columns: Mapping[str, str]) -> Printed:
    given = {label: content for label, content in block["columns"].items() if label in columns}
    return Printed(
        block["source"],
        block["figure"],
        block.get("network", ""),
        {label: content["target"] for label, content in given.items() if "target" in content},
        {
            label: {row: _number(value) for row, value in content.items() if row != "target"}
            for label, content in given.items()
            if content != DRAWN
        },
    )


def _number(given: Scalar) -> Number:
    """Read a printed number such as ``96.92 ± 0.09 (a note)``, ``>100``, ``-`` or ``drawn``."""
    text = given if isinstance(given, str) else scalar_text(given)
    match = _NUMBER.fullmatch(text)
    assert match is not None  # the pattern takes any text
    value = match["value"]
    return Number(match["text"], float(value) if value else None, match["note"] or "")


def title(kind: str, name: str) -> str:
    """Return what the comment on the first line of ``conf/<kind>/<name>.yaml`` says it is."""
    path = layers.CONF / kind / f"{name}.yaml"
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""
