"""What is typed after `nectar compare` as its options, and runs and results of figures made up."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nectar.comparison.request import CompareOptions
from nectar.comparison.results import Results, of_rows
from nectar.comparison.tuning import Choice
from nectar.records.record import RunRecord


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
    *accuracies: float,
    alone: bool = True,
    completed: bool = True,
    rejected: int = 0,
    rounds: int = 0,
    found: Mapping[str, Any] | None = None,
    models: Mapping[str, float] | None = None,
) -> RunRecord:
    """A run whose rounds send 100 bytes up and 1000 down, and take 2 and 0.5 seconds; round 0 is 0.1 for nothing.

    Of a run that is not ``completed`` there was to be one round more. ``found`` is what an audit's attack found, and
    whether in part; ``models`` what each network's accuracy was.
    """
    planned = rounds or len(accuracies) + (not completed)
    provenance = {
        "run-config": {"method": "fedavg", "rounds": planned},
        "outcome": "completed" if completed else "interrupted",
        "alone": alone,
        "hardware": {"machine": "x86_64"},
    }
    run = RunRecord(Path("/r"), provenance=provenance)
    run.rounds = [_line(0, 0.1, validation=0.1)]
    for n, accuracy in enumerate(accuracies, start=1):
        line = _line(n, accuracy, up=100, down=1000, devices=2.0, server=0.5)
        own = {name: {"accuracy": value} for name, value in (models or {}).items()}
        run.rounds.append(line | {"rejected": dict.fromkeys(range(rejected), "why"), "models": own})
    attacks = {"nearest": dict(found or {})}
    run.audit = found and {
        "round": len(accuracies),
        "all": {"attacks": attacks, "strongest": "nearest"},
        "rounds_not_kept": found.get("rounds_not_kept", 0),
    }
    return run


def _line(
    number: int,
    accuracy: float,
    *,
    validation: float = 0.0,
    up: int = 0,
    down: int = 0,
    devices: float = 0.0,
    server: float = 0.0,
) -> dict[str, Any]:
    return {
        "round": number,
        "test": {"accuracy": accuracy, "loss": 1.0, "per_class": [accuracy] * 10},
        "validation": {"accuracy": validation},
        "bytes": {"up": {"a": up}, "down": {"a": down}},
        "seconds": {"aggregate": server, "by_site": {"a": devices}},
    }


def results_of(
    rows: Mapping[str, Sequence[RunRecord | None]],
    rounds: int = 2,
    *,
    target: float | None = None,
    choices: tuple[Choice, ...] = (),
) -> Results:
    """What a comparison of these runs by row, of seeds 0 and on, came to."""
    runs = {label: dict(enumerate(own)) for label, own in rows.items()}
    place, typed = Path("out"), "nectar compare a"
    return of_rows("t", typed, place, runs, target=target, rounds=rounds, choices=choices)
