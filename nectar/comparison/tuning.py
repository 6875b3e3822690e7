"""The search for a row's settings (``--tune``): on the validation set, on seeds that are not reported."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from common.config.text import scalar
from common.errors import ConfigError, FederationError, near
from common.methods import METHODS
from nectar.comparison.frame import mean
from nectar.comparison.request import (
    Axis,
    Cell,
    Variant,
    choices_of,
    refuse_own_setting,
    row_setting,
)
from nectar.records.record import SEARCH

Settings = tuple[str, ...]


@dataclass(frozen=True)
class Search:
    """A grid of settings for one or more rows.

    Parameters
    ----------
    name : str
        The method or the row's label, as the search names it.
    base : Variant
        What is searched with: the row if it is the only one, else the method without any row's own settings.
    labels : tuple of str
        The rows that get the settings found.
    axes : tuple of Axis
        The searched settings; the grid is their product.
    """

    name: str
    base: Variant
    labels: tuple[str, ...]
    axes: tuple[Axis, ...]

    def grid(self) -> list[Settings]:
        """Return every combination, the last axis fastest."""
        choices = [[f"{axis.key}={value}" for value in axis.values] for axis in self.axes]
        return list(itertools.product(*choices))

    def candidate(self, settings: Settings) -> Variant:
        """Return the row that tries a combination."""
        label = f"{SEARCH}{self.name} {' '.join(settings)}"
        return replace(self.base.with_settings(settings), label=label)


@dataclass(frozen=True)
class Choice:
    """What a search tried and chose.

    Parameters
    ----------
    trials : mapping
        By combination, the validation accuracy after the last round of each seed; NaN where a run failed.
    """

    search: Search
    trials: Mapping[Settings, tuple[float, ...]]

    def score(self, settings: Settings) -> float:
        """Return a combination's mean over the seeds; NaN if any of them is missing."""
        return mean(self.trials[settings])

    @property
    def best(self) -> Settings:
        """The combination with the best mean; of equal ones the first."""
        scores = {settings: self.score(settings) for settings in self.trials}
        return max(scores, key=lambda s: -math.inf if math.isnan(scores[s]) else scores[s])

    @property
    def edges(self) -> list[str]:
        """The chosen settings that are the smallest or largest number tried: a better one may be outside."""
        chosen = zip(self.search.axes, self.best, strict=True)
        return [setting for axis, setting in chosen if _at_edge(axis, setting.partition("=")[2])]


def choose(search: Search, trials: Mapping[Settings, tuple[float, ...]], why: str) -> Choice:
    """Choose the best of ``trials``; FederationError, saying ``why``, if none has a completed run of every seed."""
    choice = Choice(search, trials)
    if math.isnan(choice.score(choice.best)):
        raise FederationError(
            f"the search for {search.name} has no combination whose runs completed: {why}."
        )
    return choice


def _at_edge(axis: Axis, value: str) -> bool:
    numbers = [scalar(text) for text in axis.values]
    if len(numbers) < 2 or not all(type(number) in (int, float) for number in numbers):
        return False
    return scalar(value) in (min(numbers), max(numbers))  # type: ignore[type-var]


def searches_of(cell: Cell) -> list[Search]:
    """Read ``--tune NAME.key=v1,v2,...``: NAME is a method (for all its rows) or a row's label.

    Raises
    ------
    ConfigError
        If the name is neither, a value is given twice, or a row itself sets what is searched.
    """
    variants = cell.variants
    axes: dict[str, list[Axis]] = {}
    for text in cell.options.tune:
        name, rest = _split_name(text, variants)
        axes.setdefault(name, []).append(_axis(text, rest, _method(name, variants)))
    named = set(axes) & {v.label for v in variants if v.label != v.method}
    found = []
    for name, its in axes.items():
        if len({axis.key for axis in its}) < len(its):
            raise ConfigError(
                f"--tune names a setting of {name} twice: give all its values at once."
            )
        rows = [
            v
            for v in variants
            if (v.label == name if name in named else v.method == name and v.label not in named)
        ]
        why = "--tune is to choose: leave one out, or search for another row by its label."
        refuse_own_setting(rows, its, why)
        base = rows[0] if len(rows) == 1 else Variant(name, name)
        found.append(Search(name, base, tuple(row.label for row in rows), tuple(its)))
    return found


def _method(name: str, variants: Sequence[Variant]) -> str:
    return next((v.method for v in variants if v.label == name and v.label != v.method), name)


def _split_name(text: str, variants: Sequence[Variant]) -> tuple[str, str]:
    """Split ``NAME.key=values`` after the longest name there is."""
    names = {v.method for v in variants} | {v.label for v in variants}
    for name in sorted(names, key=len, reverse=True):
        if text.startswith(f"{name}."):
            return name, text.removeprefix(f"{name}.")
    typed = text.partition("=")[0].partition(".")[0]
    extra = "; it is not compared" if typed in METHODS else ""
    raise ConfigError(
        f"--tune {text}: {typed!r} is neither a method nor a row of this comparison{extra}{near(typed, names)}: "
        f"start with {' or '.join(sorted(names))}, as in {min(names)}.lr=0.1,0.3."
    )


def _axis(text: str, rest: str, method: str) -> Axis:
    key, equals, values = rest.partition("=")
    if not key or not equals:
        raise ConfigError(f"--tune {text}: write METHOD.key=v1,v2,... with at least one value.")
    choices = choices_of(values, f"--tune {text}")
    dotted = row_setting(method, f"{key}=", f"--tune {text}").removesuffix("=")
    if "." not in dotted:
        raise ConfigError(f"--tune {text}: {key} is not a method's setting: use --grid for it.")
    return Axis(dotted, choices)
