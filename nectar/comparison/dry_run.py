"""What a comparison would do: which runs are there, how long the others may take, and the room they need."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from common.config.keys import PATH_KEYS
from common.config.text import parse_set
from common.errors import ConfigError, FederationError
from nectar.comparison.comparison import Comparison
from nectar.comparison.plan import Task
from nectar.comparison.run_scheduler import most_of_a_run
from nectar.comparison.run_start import RunStarter
from nectar.comparison.tables import size
from nectar.records.archive import Archive
from nectar.words import spoken
from server_app.record import KnownRun, Record

#: of a run config, what leaves the seconds of a round and the size of a record about as they are
_ASIDE = (*PATH_KEYS, "experiment", "rounds", "round", "seed", "typed", "resolved", "set")

#: sections of which the same holds
_LITTLE = ("partition", "federation", "track")

Kind = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class _Measured:
    """What a record of a kind took: seconds of a round and bytes of the record."""

    seconds: float
    size: int


def dry_run(comparisons: Sequence[Comparison]) -> str:
    """Say of each run whether it is there, and of the others together what they may take.

    Parameters
    ----------
    comparisons : sequence of Comparison
        The comparison, or a table's or a grid's, whose records lie in one directory.
    """
    records = comparisons[0].records
    archive = Archive(records)
    tasks = {t.identity: t for each in comparisons for t in (*each.trials, *each.tasks)}
    lines, missing = [], []
    for task in tasks.values():
        found = archive.completed(task.identity)
        begun = None if found else archive.unfinished(task.identity)
        missing += [] if found else [task]
        said = f"there ({found.id})" if found else f"goes on ({begun.id})" if begun else "to be run"
        lines.append(f"{task.name}: {said}")
    lines += ["", f"{len(tasks)} runs, {len(tasks) - len(missing)} of them there already."]
    if any(each.trials for each in comparisons):
        lines.append(
            "Searched rows stand with their first combination: what is chosen is not known yet."
        )
    if missing:
        first = comparisons[0]
        # a cluster is not asked how many of its cores are free
        jobs = first.jobs or (1 if first.on_cluster else RunStarter().jobs(*most_of_a_run(missing)))
        lines += _expected(missing, _measured(archive), jobs, records)
    return "\n".join(lines)


def _expected(
    missing: Sequence[Task], known: Mapping[Kind, list[_Measured]], jobs: int, records: Path
) -> Iterator[str]:
    """Yield sentences about runs that are to be made."""
    alike = [(task, known.get(_kind(task.config.to_run_config()), [])) for task in missing]
    found = [(task, own) for task, own in alike if own]
    if len(found) < len(missing):
        others = len(missing) - len(found)
        yield (
            f"No estimate of {others} of {len(missing)}: no record here is of such a run; `nectar run --dry-run` times "
            "a step of one."
        )
    if not found:
        return
    seconds = sum(t.config.rounds * fmean(m.seconds for m in own) for t, own in found)
    room = sum(fmean(m.size for m in own) for _, own in found)
    side = f", {spoken(seconds / jobs)} with {jobs} at a time" if jobs > 1 else ""
    yield f"Of {len(found)} runs there are records alike: about {spoken(seconds)} of computing{side}."
    at = next(place for place in (records, *records.parents) if place.is_dir())
    free = shutil.disk_usage(at).free
    yield f"Their records take about {size(room)}; {size(free)} are free in {at}."


def _measured(archive: Archive) -> dict[Kind, list[_Measured]]:
    found: dict[Kind, list[_Measured]] = {}
    for run in archive.all_completed():
        measured = _took(run)
        if measured is not None:
            settings = run.provenance["run-config"]
            found.setdefault(_kind(settings), []).append(measured)
    return found


def _took(run: KnownRun) -> _Measured | None:
    try:
        lines = [line for line in Record(run.directory).metrics() if line["round"]]
    except FederationError:  # damaged
        return None
    clocks = [line.get("seconds") or {} for line in lines]
    if not clocks:
        return None
    seconds = fmean(
        sum(value for value in clock.values() if isinstance(value, int | float)) for clock in clocks
    )
    files = [path for path in run.directory.rglob("*") if path.is_file()]
    return _Measured(seconds, sum(path.stat().st_size for path in files))


def _kind(run_config: Mapping[str, Any]) -> Kind:
    """Return what makes runs alike in what they take: all settings but seed, rounds, division and paths."""
    own = {key: value for key, value in run_config.items() if key not in _ASIDE and value != ""}
    try:
        settings = parse_set(str(run_config.get("set", "")))
    except ConfigError:  # of a record that nobody wrote with Nectar
        settings = {}
    own |= {k: v for k, v in settings.items() if k.partition(".")[0] not in _LITTLE}
    own["sites"] = settings.get("federation.sites")
    return tuple(sorted((key, repr(value)) for key, value in own.items()))
