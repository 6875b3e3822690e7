"""What is typed after `nectar compare` as its options, and runs and results of figures made up."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from nectar.comparison.frame import default_target, frames
from nectar.comparison.request import CompareOptions
from nectar.comparison.results import ComparisonResult
from nectar.comparison.tuning import Choice
from nectar.records.record import RoundFigures, RunFigures


def options_of(words: Iterable[str]) -> CompareOptions:
    """Return the options of the command."""
    words = list(words)
    parser = argparse.ArgumentParser(exit_on_error=False)
    for name in ("seeds", "jobs", "tune-seeds"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--target", type=float)
    parser.add_argument("--output")
    for name in ("tune", "grid"):
        parser.add_argument(f"--{name}", action="append")
    for name in ("alone", "small", "search"):
        parser.add_argument(f"--{name}", action="store_true")
    options, rest = parser.parse_known_args(words)
    given = {name: value for name, value in vars(options).items() if value is not None}
    given |= {name: tuple(given.get(name, ())) for name in ("tune", "grid")}
    return CompareOptions(tuple(rest), **given, typed=shlex.join(["nectar", "compare", *words]))


def a_run(
    *accuracies: float, alone: bool = True, completed: bool = True, rejected: int = 0
) -> RunFigures:
    """A run whose rounds send 100 bytes up and 1000 down, and take 2 and 0.5 seconds; round 0 is 0.1 for nothing."""
    rounds = [RoundFigures(0, 0.1, 0.1, 0, 0, 0.0, 0.0, 0, True)]
    rounds += [
        RoundFigures(n, accuracy, 0.0, 100, 1000, 2.0, 0.5, rejected, True)
        for n, accuracy in enumerate(accuracies, start=1)
    ]
    return RunFigures(Path("r"), tuple(rounds), completed, alone, 0.1, "x86_64")


def results_of(
    rows: Mapping[str, Sequence[RunFigures | None]],
    rounds: int = 2,
    *,
    target: float | None = None,
    choices: tuple[Choice, ...] = (),
) -> ComparisonResult:
    """What a comparison of these runs by row, of seeds 0 and on, came to."""
    runs = {label: dict(enumerate(own)) for label, own in rows.items()}
    goal = default_target(runs) if target is None else target
    by_run, by_round = frames(runs, rounds, goal)
    place = Path("out")
    given = target is not None
    return ComparisonResult(
        "t", "nectar compare a", place, by_run, by_round, rounds, goal, given, choices
    )
