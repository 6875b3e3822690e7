"""What ``nectar compare ROWS --grid KEY=v1,v2`` asks for: a comparison for each combination of values."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common.config.keys import CONFIG, INTERNAL_KEYS, PATH_KEYS, RUN_KEYS, nearest
from common.config.layers import home_of
from common.config.schema import known_keys
from common.errors import ConfigError
from nectar.comparison.asked import Asked
from nectar.comparison.request import Request, parse
from nectar.comparison.tuning import Axis, choices_of
from nectar.comparison.variants import file_name, is_setting, own_sections
from nectar.words import key_of

#: keys of the run that no grid can go over, and what does instead
_INSTEAD = {
    "method": "methods are the rows",
    "seed": "--seeds repeats each run",
    "round": "it is of a run that continues",
    "set": "name each setting by itself",
    CONFIG: "a comparison has one file of settings",
    **dict.fromkeys(PATH_KEYS, "all runs share it"),
    **dict.fromkeys(INTERNAL_KEYS, "it is not typed"),
}


@dataclass(frozen=True)
class Cell:
    """A combination of values, one of each axis, in the axes' order."""

    axes: tuple[Axis, ...]
    values: tuple[str, ...]

    @property
    def label(self) -> str:
        """What tables and messages call it, such as ``alpha=0.1 dataset=mnist``."""
        return " ".join(self.named)

    @property
    def named(self) -> list[str]:
        """Its values with the axes' names."""
        return [f"{a.name}={v}" for a, v in zip(self.axes, self.values, strict=True)]

    @property
    def words(self) -> tuple[str, ...]:
        """Its settings as they are typed."""
        return tuple(f"{a.key}={v}" for a, v in zip(self.axes, self.values, strict=True))


@dataclass(frozen=True)
class GridRequest:
    """A grid as it was asked for.

    Parameters
    ----------
    axes : tuple of Axis
        What it goes over; the last axis varies fastest.
    requests : mapping of Cell to Request
        The comparison of each cell.
    typed : str
        The words that asked for it, as a shell takes them.
    output : Path or None
        Where the files go; None: below the output directory.
    """

    axes: tuple[Axis, ...]
    requests: Mapping[Cell, Request]
    typed: str
    output: Path | None


def parse_grid(asked: Asked) -> GridRequest:
    """Read the rows, what they share, and the axes.

    Raises
    ------
    ConfigError
        If an axis is not ``KEY=v1,v2``, its key is none that can differ between cells, or it is given elsewhere, too;
        else as :func:`nectar.comparison.request.parse`.
    """
    axes = tuple(_axis(text, asked.words) for text in asked.grid)
    for i, axis in enumerate(axes):
        if axis.key in [other.key for other in axes[:i]]:
            raise ConfigError(f"--grid names {axis.key} twice: give all its values at once.")
        if axis.name in [other.name for other in axes[:i]]:
            raise ConfigError(
                f"--grid names two settings called {axis.name}, which no heading tells apart: compare one of them in "
                "rows of its own."
            )
    cells = [Cell(axes, values) for values in itertools.product(*(axis.values for axis in axes))]
    output, folders = asked.folder, _folders(cells)
    plain = replace(asked, grid=(), output=None)
    requests = {}
    for cell in cells:
        request = parse(replace(plain, words=(*asked.words, *cell.words)))
        _refuse_own(request, axes)
        place = None if output is None else output / folders[cell]
        requests[cell] = replace(request, output=place)
    return GridRequest(axes, requests, asked.typed, output)


def _folders(cells: Sequence[Cell]) -> dict[Cell, str]:
    """Return the name of each cell's folder, with its number where another one would be called the same."""
    names = [file_name(cell.label) for cell in cells]
    return {
        cell: name if names.count(name) == 1 else f"{number}-{name}"
        for number, (cell, name) in enumerate(zip(cells, names, strict=True), 1)
    }


def _axis(text: str, words: Sequence[str]) -> Axis:
    key, equals, values = text.partition("=")
    key = key_of(text) or key.strip()
    if not key or not equals:
        raise ConfigError(f"--grid {text}: write KEY=v1,v2,...")
    choices = choices_of(values, f"--grid {text}")
    if key in _INSTEAD:
        raise ConfigError(f"--grid {text}: no grid goes over {key}; {_INSTEAD[key]}.")
    own = own_sections(words)
    if not is_setting(f"{key}=", own):
        known = [*(each for each in RUN_KEYS if each not in _INSTEAD), *known_keys()]
        guess = home_of(key, known) or nearest(key, known)
        hint = f": did you mean {guess}?" if guess else ": `nectar config --help` lists all."
        raise ConfigError(f"--grid {text}: {key} is not a setting{hint}")
    return Axis(key, choices)


def _refuse_own(request: Request, axes: Sequence[Axis]) -> None:
    for row in request.variants:
        for axis in axes:
            if any(key_of(word) == axis.key for word in row.own):
                raise ConfigError(
                    f"{row.label!r} sets {axis.key} itself, which --grid goes over: leave one out."
                )
