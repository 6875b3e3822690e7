"""What a comparison would run: how long it may take, and its runs as commands and as shards for other machines."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from common.config.keys import PATH_KEYS
from common.config.text import parse_set
from common.errors import ConfigError, FederationError
from nectar.comparison.comparison import Comparison
from nectar.comparison.run_process import LocalStarter
from nectar.comparison.scheduler import PlannedRun, most_of_a_run
from nectar.comparison.tables import size
from nectar.records.record import RunRecord
from nectar.records.run_list import Archive
from nectar.words import spoken
from server_app.record import Record

PRINT = "--print"

#: of a run config, what hardly changes the seconds of a round and the size of a record
_ASIDE = (*PATH_KEYS, "experiment", "rounds", "round", "seed", "typed", "resolved", "set")

#: sections of which the same holds
_LITTLE = ("partition", "federation", "track")

Kind = tuple[tuple[str, Any], ...]


# -- shards -------------------------------------------------------------------------------------


def parse_shard(text: str) -> tuple[int, int]:
    """Return K and N of ``K/N``; ConfigError if it is not that, or K is not from 1 to N."""
    found = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", text)
    if found is None or int(found[1]) > int(found[2]):
        raise ConfigError(
            f"--only={text}: write K/N with K from 1 to N, such as 1/8, 2/8, ..., 8/8."
        )
    return int(found[1]), int(found[2])


def shard(comparison: Comparison, number: int, of: int) -> list[PlannedRun]:
    """Return one of ``of`` shards of the runs: every ``of``-th, so that long rows are divided evenly.

    Raises
    ------
    ConfigError
        If rows are searched: what is run then depends on all runs of the search.
    """
    if any(planned.trials for planned in comparison.planned):
        raise ConfigError(
            "--only divides runs that are known beforehand, and these rows are searched: give every task of the array "
            "the same command without --only, and each carries out what no other has."
        )
    runs = {run.identity: run for planned in comparison.planned for run in planned.runs}
    return list(runs.values())[number - 1 :: of]


def commands(comparison: Comparison, words: Sequence[str]) -> str:
    """Return a command for each run, a line each with the run's name after it: the comparison's, for one shard.

    Parameters
    ----------
    words : sequence of str
        What was typed after ``nectar``.

    Raises
    ------
    ConfigError
        If rows are searched.
    """
    typed = shlex.join(["nectar", *(word for word in words if word != PRINT)])
    names = [run.name for run in shard(comparison, 1, 1)]
    return "\n".join(
        f"{typed} --only {k}/{len(names)}  # {name}" for k, name in enumerate(names, 1)
    )


# -- what is there, and what the rest takes -----------------------------------------------------


def dry_run(comparison: Comparison) -> str:
    """Say of each run whether it is there, and what the others may take together."""
    archive, planned = Archive(comparison.records), comparison.planned
    runs = {r.identity: r for each in planned for r in (*each.trials, *each.runs)}
    lines, missing = [], []
    for run in runs.values():
        found = archive.completed(run.identity)
        begun = None if found else archive.unfinished(run.identity)
        missing += [] if found else [run]
        state = (
            f"there ({found.id})" if found else f"goes on ({begun.id})" if begun else "to be run"
        )
        lines.append(f"{run.name}: {state}")
    lines += ["", f"{len(runs)} runs, {len(runs) - len(missing)} of them there already."]
    if any(each.trials for each in planned):
        lines.append(
            "Searched rows stand with their first combination: what is chosen is not known yet."
        )
    if missing:
        options = comparison.options
        # a cluster is not asked how many of its cores are free
        jobs = options.parallel or (
            1 if options.ray else LocalStarter().jobs(*most_of_a_run(missing))
        )
        lines += _expected(missing, _measured(archive), jobs, comparison.records)
    return "\n".join(lines)


def _expected(
    missing: Sequence[PlannedRun],
    known: Mapping[Kind, list[tuple[float, int]]],
    jobs: int,
    records: Path,
) -> Iterator[str]:
    """Yield sentences about runs that are to be made."""
    alike = [(run, known.get(_kind(run.config.to_run_config()), [])) for run in missing]
    found = [(run, own) for run, own in alike if own]
    if len(found) < len(missing):
        others = len(missing) - len(found)
        yield (
            f"No estimate of {others} of {len(missing)}: no record here is of such a run; `nectar run --dry-run` times "
            "a step of one."
        )
    if not found:
        return
    seconds = sum(run.config.rounds * fmean(took for took, _ in own) for run, own in found)
    room = sum(fmean(taken for _, taken in own) for _, own in found)
    side = f", {spoken(seconds / jobs)} with {jobs} at a time" if jobs > 1 else ""
    yield f"Of {len(found)} runs there are records alike: about {spoken(seconds)} of computing{side}."
    at = next(place for place in (records, *records.parents) if place.is_dir())
    free = shutil.disk_usage(at).free
    yield f"Their records take about {size(room)}; {size(free)} are free in {at}."


def _measured(archive: Archive) -> dict[Kind, list[tuple[float, int]]]:
    """Return what the records of each kind took: seconds of a round, and bytes of the record."""
    found: dict[Kind, list[tuple[float, int]]] = {}
    for run in archive.all_completed():
        if (seconds := _seconds(run)) is not None:
            files = [path for path in run.directory.rglob("*") if path.is_file()]
            own = found.setdefault(_kind(run.provenance["run-config"]), [])
            own.append((seconds, sum(path.stat().st_size for path in files)))
    return found


def _seconds(run: RunRecord) -> float | None:
    try:
        lines = [line for line in Record(run.directory).metrics() if line["round"]]
    except FederationError:  # damaged
        return None
    clocks = [(line.get("seconds") or {}).values() for line in lines]
    sums = [sum(value for value in clock if isinstance(value, int | float)) for clock in clocks]
    return fmean(sums) if sums else None


def _kind(run_config: Mapping[str, Any]) -> Kind:
    """Return what makes runs alike in what they take: all settings but seed, rounds, division and paths."""
    own = {key: value for key, value in run_config.items() if key not in _ASIDE and value != ""}
    try:
        settings = parse_set(str(run_config.get("set", "")))
    except ConfigError:  # of a record that Nectar did not write
        settings = {}
    own |= {k: v for k, v in settings.items() if k.partition(".")[0] not in _LITTLE}
    own["sites"] = settings.get("federation.sites")
    return tuple(sorted((key, repr(value)) for key, value in own.items()))
