"""`nectar runs`: the records of runs, listed and removed."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from common.config.loading import load
from common.errors import ConfigError, nearest
from nectar.arguments import (
    format_duration,
    key_of_argument,
    looks_like_path,
    parse_arguments,
    refuse_repeats,
)
from nectar.command_line import command
from nectar.records.record import OUTCOMES, RunRecord
from nectar.records.run_list import chosen, other_schemas_below, remove, runs_below, sweep
from nectar.text import MISSING, aligned, plain, share, size
from server_app.run_directory import RunDirectory

HELP = """\
Lists the records in the output directory: rounds done of those planned, the last round's accuracy, how the run
ended, the size of its files and how long ago it started. Filter by method=, dataset=, seed= and outcome= (completed,
failed, interrupted, running or killed). Records of runs in progress are never removed, nor anything outside the output
directory or behind a symbolic link.

\b
nectar runs method=fedavg dataset=digits
nectar runs --remove 20260722-101500-feddm-digits-seed0-1a2b3c
"""

_FILTERS = ("method", "dataset", "seed", "outcome")
_OUTPUT = "output-dir"
_HEAD = ("id", "by", "method", "data set", "seed", "rounds", "accuracy", "outcome", "size", "age")


@command(HELP)
@click.argument(
    "words",
    metavar="[FILTER=VALUE | ID]... [output-dir=DIR]",
    help="which records, and in which directory",
    nargs=-1,
)
@click.option("--json", "as_json", is_flag=True, help="print JSON, with the directories")
@click.option("--remove", "removing", is_flag=True, help="remove the named records, after a prompt")
@click.option("--yes", is_flag=True, help="remove without a prompt")
def main(words: tuple[str, ...], as_json: bool, removing: bool, yes: bool) -> int:
    """List or remove records; return 0, or 1 if the user declined to remove them."""
    settings = [word for word in words if not looks_like_path(word)]
    names = [word for word in words if looks_like_path(word)]
    refuse_repeats(settings)
    where = [word for word in settings if key_of_argument(word) == _OUTPUT]
    wanted = _wanted([word for word in settings if word not in where])
    output = load(parse_arguments(where)).output_dir
    if removing:
        if wanted or not names or as_json:
            raise ConfigError(
                "nectar runs --remove takes ids of records and output-dir, but no filter and no --json."
            )
        return _remove(output, names, asked=not yes)
    if names or yes:
        raise ConfigError(
            f"nectar runs takes filters ({', '.join(_FILTERS)}) as key=value; ids follow --remove."
        )
    runs = runs_below(output)
    for key, value in wanted.items():
        runs = [run for run in runs if str(getattr(run, key)) == value]
    others = [] if wanted else other_schemas_below(output)
    if as_json:
        more = [_unread(record) for record in others]
        print(json.dumps([*map(_stated, runs), *more], indent=2))
        return 0
    if runs or not others:
        print(_table(runs) if runs else f"no such record in {output}")
    for record in others:
        print(plain(f"{record.id} {record.why_not()}"))
    return 0


def _wanted(words: Sequence[str]) -> dict[str, str]:
    wanted: dict[str, str] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key not in _FILTERS:
            guess = nearest(key, _FILTERS)
            hint = f"did you mean {guess}?" if guess else f"choose from {', '.join(_FILTERS)}."
            raise ConfigError(f"{key} is not a filter of nectar runs: {hint}")
        wanted[key] = value
    outcome = wanted.get("outcome", OUTCOMES[0])
    if outcome not in OUTCOMES:
        raise ConfigError(f"unknown outcome {outcome}: choose from {', '.join(OUTCOMES)}.")
    return wanted


def _remove(output: Path, names: Sequence[str], *, asked: bool) -> int:
    runs = chosen(output, names)
    if asked and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("nectar runs --remove prompts at a terminal; without one, add --yes.")
    if asked:
        print(_table(runs))
        try:
            answer = input("Remove for good? [y/N] ")
        except EOFError:
            answer = ""
        if answer.strip().lower() not in ("y", "yes"):
            print("nothing removed")
            return 1
    sweep(output)
    for run in runs:
        freed = size(run.size)
        remove(run)
        print(f"removed {run.directory} ({freed})")
    return 0


def _table(runs: Sequence[RunRecord]) -> str:
    return aligned([_HEAD, *map(_row, runs)], right=False)


def _row(run: RunRecord) -> tuple[str, ...]:
    seed = MISSING if run.seed is None else str(run.seed)
    rounds = f"{run.done}/{MISSING if run.planned is None else run.planned}"
    cells = (
        run.id,
        run.begun_by,
        run.method,
        run.dataset,
        seed,
        rounds,
        share(run.last_accuracy),
        run.outcome,
    )
    started = run.started
    age = format_duration((datetime.now(UTC) - started).total_seconds()) if started else MISSING
    return (*map(plain, cells), size(run.size), age)


def _stated(run: RunRecord) -> dict[str, Any]:
    """Return the run's line for --json."""
    return {
        "id": run.id,
        "directory": str(run.directory),
        "begun_by": run.begun_by,
        "method": run.method,
        "dataset": run.dataset,
        "seed": run.seed,
        "rounds": run.planned,
        "done": run.done,
        "accuracy": run.last_accuracy,
        "outcome": run.outcome,
        "bytes": run.size,
        "started": None if run.started is None else run.started.isoformat(),
    }


def _unread(record: RunDirectory) -> dict[str, Any]:
    known = {"id": record.id, "directory": str(record.directory), "outcome": "unreadable"}
    return {**known, "problem": record.why_not()}
