"""Tables of papers as data, ``conf/table/<table>.yaml``: the cells that they describe are the experiments.

A *departure* is a mapping of settings, by section or by dotted key. Its key ``base`` names the cell that it departs
from, instead of what precedes it; ``base: none`` starts from nothing. A table has a departure ``base``, a
departure ``small`` (to a size for two cores) and axes of columns, each a departure that may have a ``small`` of its
own. A cell is a combination of columns: its name is the table's ``name`` and the columns' labels, joined by hyphens,
and ``-small`` after it for its small variant. Its settings are, the later over the earlier: base, small, then each
column with its own small.

The first word of a file's name is the first word of its cells' names, so that one cell is found without reading all
tables. What a table says of rows is read by ``nectar compare`` alone; so is ``refit: on``, by which the reported runs
hold nothing back for validation, as searches do. The numbers that a paper prints are in nectar/comparison/printed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from common.code.imports import is_import_path
from common.config import layers
from common.config.keys import COMMAND_LINE, show, where_phrase
from common.config.layers import BASE, Layer, flatten, names
from common.config.text import read_yaml
from common.errors import ConfigError, fold, near, nearest
from common.methods import METHODS
from common.settings.sections import RunSettings

TABLE = "table"
_PARTS = ("name", BASE, "small", "columns", "cells", "rows", "tuned_by", "refit")
SMALL = "small"
ENDING = f"-{SMALL}"
"""What the name of a small variant ends in."""

NOTHING = "none"
"""The ``base`` of a departure that starts from nothing."""


@dataclass(frozen=True)
class Departure:
    """Settings, and the cell that they depart from where they name one."""

    layer: Layer
    base: str | None = None


@dataclass(frozen=True)
class Column:
    """A combination of columns of a table: a cell."""

    label: str
    cell: str
    steps: tuple[Departure, ...]
    small_steps: tuple[Departure, ...]


@dataclass(frozen=True)
class TableFile:
    """A table as its file describes it."""

    name: str
    base: Departure
    small: Departure | None
    columns: tuple[Column, ...]
    others: tuple[str, ...]
    content: Mapping[str, Any]

    @property
    def source(self) -> str:
        """The file, as messages call it."""
        return _source(self.name)


def read_table(name: str) -> TableFile:
    """Read a table, whose file is known to be there; ConfigError if the file is not made as this module's text says."""
    source = _source(name)
    content = read_yaml(layers.CONF / TABLE / f"{name}.yaml", source)
    for key in content:
        if key not in _PARTS:
            guess = nearest(key, _PARTS) if key not in RunSettings.model_fields else None
            hint = (
                f"did you mean {guess}?" if guess else "settings belong in base, small and columns."
            )
            raise ConfigError(f"{key} in {source} is not a part of a table: {hint}")
    small = content.get(SMALL)
    return TableFile(
        name,
        _departure(content.get(BASE), source),
        None if small is None else _departure(small, f"{source} ({SMALL})"),
        tuple(_columns(content, source)),
        tuple(content.get("cells", ())),
        content,
    )


def _columns(content: Mapping[str, Any], source: str) -> Iterator[Column]:
    """Yield a column for every combination of the axes; without an axis the name alone is a cell."""
    if "name" not in content:
        return
    axes = content.get("columns", [])
    if not isinstance(axes, list) or not all(isinstance(axis, dict) for axis in axes):
        raise ConfigError(
            f"columns in {source} must be a list of axes, each with labels and settings."
        )
    for chosen in itertools.product(*(axis.items() for axis in axes)):
        labels = [label for label, _ in chosen if label]
        cell = "-".join([content["name"], *labels])
        steps, small_steps = [], []
        for label, settings in chosen:
            where = f"{source} ({label})" if label else source
            own = {key: value for key, value in (settings or {}).items() if key != SMALL}
            steps.append(_departure(own, where))
            small_steps.append(steps[-1])
            if SMALL in (settings or {}):
                small_steps.append(_departure(settings[SMALL], f"{source} ({label}, {SMALL})"))
        yield Column("-".join(labels) or cell, cell, tuple(steps), tuple(small_steps))


def _departure(given: Any, where: str) -> Departure:
    """Read a departure; a text is the name of a cell."""
    content = {BASE: given} if isinstance(given, str) else given or {}
    if not isinstance(content, dict):
        raise ConfigError(
            f"{where} must hold settings or the name of an experiment, not {show(given)}."
        )
    values = flatten(content, where)
    base = values.pop(BASE, None)
    if BASE in content and not isinstance(base, str):
        raise ConfigError(f"{BASE} in {where} must be a name, not {show(base)}.")
    return Departure(Layer(where, values), base)


def experiments() -> dict[str, bool]:
    """Return every cell of every table, sorted, and whether it has a small variant."""
    homes = [(table, column) for table in map(read_table, names(TABLE)) for column in table.columns]
    return dict(sorted((column.cell, _has_small(table, column)) for table, column in homes))


def experiment_names() -> list[str]:
    """Return every name that ``experiment=`` takes."""
    return sorted(
        name for cell, small in experiments().items() for name in (cell, *[cell + ENDING] * small)
    )


def is_experiment(name: str) -> bool:
    """Return whether ``experiment=`` takes the name; only tables are read whose cells begin as it does."""
    return _find(name) is not None


def experiment_layers(
    name: str, where: str = COMMAND_LINE, above: tuple[str, ...] = ()
) -> list[Layer]:
    """Return the layers of an experiment's settings, those of what it departs from below its own; else ConfigError."""
    found = _find(name)
    if found is None:
        raise _unknown(name, where)
    table, column, small = found
    steps = [table.base, *column.steps]
    if small:
        own = [] if table.small is None else [table.small]
        steps = [table.base, *own, *column.small_steps]
    start = max((i for i, step in enumerate(steps) if step.base is not None), default=0)
    layers: list[Layer] = []
    base = steps[start].base
    if base not in (None, NOTHING):
        cell = f"{base}{ENDING}" if small else str(base)
        if cell in (*above, name):
            raise ConfigError(f"{BASE} in {table.source} leads back to {base}: remove one base.")
        layers = experiment_layers(cell, steps[start].layer.where, (*above, name))
    return [*layers, *(step.layer for step in steps[start:])]


def _find(name: str) -> tuple[TableFile, Column, bool] | None:
    """Return the table and the column of an experiment, and whether it is the small variant."""
    first = name.partition("-")[0]
    homes = [read_table(table) for table in names(TABLE) if table.partition("-")[0] == first]
    for cell, small in ((name, False), (name.removesuffix(ENDING), True)):
        for table in homes:
            for column in table.columns:
                if column.cell == cell and (not small or _has_small(table, column)):
                    return table, column, small
    return None


def _has_small(table: TableFile, column: Column, above: tuple[str, ...] = ()) -> bool:
    """Return whether a cell has a small variant: its table states one, or what it departs from has one."""
    if table.small is not None:
        return True
    bases = [step.base for step in (table.base, *column.steps) if step.base is not None]
    if not bases or bases[-1] in (NOTHING, *above):
        return False
    found = _find(bases[-1])
    return found is not None and _has_small(found[0], found[1], (*above, bases[-1]))


def _unknown(name: str, where: str) -> ConfigError:
    hint = ""
    if is_import_path(name):
        return ConfigError(
            f"{name!r} {where_phrase(where)} names a method by its import path: write method={name}."
        )
    if name in METHODS:
        hint = f"; a method is chosen by method={name}"
    elif name in names("dataset"):
        hint = f"; a data set is chosen by dataset={name}"
    elif name in names(TABLE):
        hint = f"; a table is run by `nectar compare {TABLE}={name}`"
    what, hinted = "experiment=", near(name, experiment_names(), several=True)
    if where == COMMAND_LINE and not hint:
        if guess := next((data for data in names("dataset") if fold(data) == fold(name)), ""):
            hint = f"; a data set is chosen by dataset={guess}"
        if (either := near(name, [*METHODS, *experiment_names()], several=True)) != hinted:
            what, hinted = "method or experiment ", either
    return ConfigError(
        f"{what}{name!r} {where_phrase(where)} is unknown{hinted}: "
        f"`nectar config --help` lists all{hint}."
    )


def _source(name: str) -> str:
    return f"conf/{TABLE}/{name}.yaml"
