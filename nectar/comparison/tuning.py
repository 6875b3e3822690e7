"""The search for a method's settings: on the validation set, on seeds that are not reported."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from common.config.keys import nearest
from common.config.text import scalar
from common.errors import ConfigError, FederationError
from common.methods import METHODS
from nectar.comparison.request import Request
from nectar.comparison.rows import mean
from nectar.comparison.variants import Variant, own_setting

Settings = tuple[str, ...]


@dataclass(frozen=True)
class Axis:
    """A setting that is searched, or that a grid goes over: its key and its values, as typed."""

    key: str
    values: tuple[str, ...]

    @property
    def name(self) -> str:
        """The key as a heading has it: without its section."""
        return self.key.rpartition(".")[2]


@dataclass(frozen=True)
class Search:
    """A grid of settings for one or more rows.

    Parameters
    ----------
    name : str
        The method or the row's label, as the search names it.
    base : Variant
        What is searched with: the row where it is only one, else the method without any row's own settings.
    labels : tuple of str
        The rows that get what is found.
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

    def candidates(self) -> list[Variant]:
        """Return a variant for every combination."""
        return [
            replace(
                self.base.with_settings(settings), label=f"search {self.name} {' '.join(settings)}"
            )
            for settings in self.grid()
        ]


@dataclass(frozen=True)
class Trial:
    """A combination and its validation accuracy after the last round by seed; NaN where a run failed."""

    settings: Settings
    accuracies: tuple[float, ...]

    @property
    def score(self) -> float:
        """The mean over the seeds; NaN if any of them is missing."""
        return mean(self.accuracies)


@dataclass(frozen=True)
class Choice:
    """What a search tried and chose."""

    search: Search
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial:
        """The trial with the best mean; of equal ones the first."""
        return max(self.trials, key=lambda t: -math.inf if math.isnan(t.score) else t.score)

    @property
    def edges(self) -> list[str]:
        """The chosen settings that are the smallest or largest number tried: a better one may lie outside."""
        chosen = zip(self.search.axes, self.best.settings, strict=True)
        return [setting for axis, setting in chosen if _at_edge(axis, setting.partition("=")[2])]


def searches_of(request: Request) -> list[Search]:
    """Read ``--tune NAME.key=v1,v2,...``: NAME is a method (for all its rows) or a row's label.

    Raises
    ------
    ConfigError
        If the name is neither, a value stands twice, or a row sets itself what is searched.
    """
    axes: dict[str, list[Axis]] = {}
    for text in request.tune:
        name, rest = _split_name(text, request.variants)
        axes.setdefault(name, []).append(_axis(text, rest, _method(name, request.variants)))
    named = set(axes) & {v.label for v in request.variants if v.label != v.method}
    found = []
    for name, its in axes.items():
        if len({axis.key for axis in its}) < len(its):
            raise ConfigError(
                f"--tune names a setting of {name} twice: give all its values at once."
            )
        rows = [
            v
            for v in request.variants
            if (v.label == name if name in named else v.method == name and v.label not in named)
        ]
        _refuse_own(rows, its)
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
    guess = nearest(typed, names)
    hint = f", the nearest is {guess}" if guess else ""
    extra = "; it is not compared" if typed in METHODS else ""
    raise ConfigError(
        f"--tune {text}: {typed!r} is neither a method nor a row of this comparison{extra}{hint}: there are "
        f"{', '.join(sorted(names))}."
    )


def _axis(text: str, rest: str, method: str) -> Axis:
    key, equals, values = rest.partition("=")
    if not key or not equals:
        raise ConfigError(f"--tune {text}: write METHOD.key=v1,v2,... with at least one value.")
    choices = choices_of(values, f"--tune {text}")
    dotted = own_setting(method, f"{key}=", f"--tune {text}").removesuffix("=")
    if "." not in dotted:
        raise ConfigError(f"--tune {text}: {key} is not a setting of a method's: --grid sweeps it.")
    return Axis(dotted, choices)


def choices_of(values: str, option: str) -> tuple[str, ...]:
    """Read values with commas between them; ConfigError if one is missing, or stands twice, naming ``option``."""
    choices = tuple(value.strip() for value in values.split(","))
    if "" in choices:
        raise ConfigError(f"{option}: a value is missing; write KEY=v1,v2,...")
    if len(set(choices)) < len(choices):
        raise ConfigError(f"{option}: a value stands twice.")
    return choices


def _refuse_own(rows: Sequence[Variant], axes: Sequence[Axis]) -> None:
    for row in rows:
        for axis in axes:
            if any(setting.partition("=")[0] == axis.key for setting in row.own):
                raise ConfigError(
                    f"{row.label!r} sets {axis.key} itself, which --tune is to choose: leave one out, or search for "
                    "another row by its label."
                )


def choose(search: Search, trials: Sequence[Trial], why: str = "see their logs") -> Choice:
    """Choose the best of ``trials``; FederationError, saying ``why``, if none has a completed run of every seed."""
    choice = Choice(search, tuple(trials))
    if math.isnan(choice.best.score):
        raise FederationError(
            f"the search for {search.name} has no combination whose runs were completed: {why}."
        )
    return choice


def _at_edge(axis: Axis, value: str) -> bool:
    numbers = [scalar(text) for text in axis.values]
    if len(numbers) < 2 or not all(
        isinstance(n, int | float) and not isinstance(n, bool) for n in numbers
    ):
        return False
    return scalar(value) in (min(numbers), max(numbers))  # type: ignore[type-var]
