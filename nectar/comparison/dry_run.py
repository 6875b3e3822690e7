"""What a comparison would run, without running it: what is there, and how long the rest may take.

The seconds of a run are those of records of such runs, else what timing a step of its row gives.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from common.config.keys import RUN_KEYS
from common.config.text import parse_set
from common.errors import ConfigError, FederationError
from nectar.arguments import format_duration
from nectar.comparison.comparison import Comparison, PlannedCell
from nectar.comparison.request import Cell
from nectar.comparison.run_process import runs_at_a_time
from nectar.comparison.scheduler import PlannedRun, most_of_a_run
from nectar.comparison.tables import size_text
from nectar.comparison.tuning import searches_of
from nectar.engines.cores import available_cores
from nectar.engines.progress import Estimate, rehearse
from nectar.records.record import RunRecord
from nectar.records.run_list import Archive
from nectar.report.text import plural
from server_app.record import Record

#: of a run config, what hardly changes the seconds of a round and the size of a record
_ASIDE = {*RUN_KEYS} - {"method", "dataset"}

#: sections of which the same holds, and how much noise a private run adds: that it does counts
_LITTLE = ("partition", "federation", "track")
_NOISE = ("privacy.noise_multiplier", "privacy.epsilon")

Kind = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class _Item:
    """A run of the comparison.

    Parameters
    ----------
    like : PlannedRun
        The run of its row that is timed: of a row that is searched, the middle of what is tried.
    completed, begun : RunRecord or None
        Its record, if it has one, as it was left.
    """

    run: PlannedRun
    like: PlannedRun
    completed: RunRecord | None
    begun: RunRecord | None

    @property
    def state(self) -> str:
        if self.completed:
            return f"there ({self.completed.id})"
        return f"goes on ({self.begun.id})" if self.begun else "to be run"


def dry_run(comparison: Comparison) -> Iterator[str]:
    """Yield, block by block, which runs are there and what the others may take, and at last what all take together.

    A block is a grid's cell or a table's column. A line comes as soon as it is known: timing a step takes seconds.
    """
    archive, options = Archive(comparison.records), comparison.options
    seen: dict[Any, _Item] = {}
    blocks = [(planned, _items(planned, archive, seen)) for planned in comparison.planned]
    missing = [item for item in seen.values() if not item.completed]
    jobs = options.parallel or (_jobs(missing) if missing else 1)
    times = _Times(archive, max(1, available_cores() // jobs))
    what = "Column" if comparison.request.table else "Cell"
    for number, (planned, items) in enumerate(blocks, 1):
        if len(blocks) > 1:
            yield f"{what} {planned.cell.label}, {number} of {len(blocks)}."
        yield from _lines(planned, items, times)
        if len(blocks) > 1:
            yield f"{what} {planned.cell.label}: {_sum(items, times, jobs)}\n"
    yield f"{plural(len(seen), 'run')}, {len(seen) - len(missing)} of them there already."
    if any(planned.trials for planned in comparison.planned):
        yield "Searched rows stand with the middle of what is tried: what is chosen is not known yet."
    if missing:
        yield from _expected(missing, times, jobs, comparison.records)
    if comparison.left_out:
        yield uncounted(comparison.left_out)


def uncounted(cells: Collection[Cell]) -> str:
    """Return how many runs the cells would have that are left out, as a sentence."""
    runs = sum(len(cell.variants) * len(cell.seeds) for cell in cells)
    tried = sum(len(s.grid()) * len(cell.tune_seeds) for cell in cells for s in searches_of(cell))
    return f"{plural(runs + tried, 'run')} of what is left out are not counted."


def _jobs(items: list[_Item]) -> int:
    """Return how many of the runs this machine carries out at a time."""
    return runs_at_a_time(*most_of_a_run([item.run for item in items]))


def _items(planned: PlannedCell, archive: Archive, seen: dict[Any, _Item]) -> list[_Item]:
    """Return the runs of a cell that no cell before has."""
    timed: dict[str, PlannedRun] = {}
    for search in planned.searches:
        own = planned.by_search[search.name]
        timed |= dict.fromkeys(
            (*search.labels, *(r.variant.label for r in own)), own[len(own) // 2]
        )
    items = []
    for run in (*planned.trials, *planned.runs):
        like = timed.setdefault(run.variant.label, run)
        if run.identity not in seen:
            found = archive.completed(run.identity)
            begun = None if found else archive.unfinished(run.identity)
            items.append(seen.setdefault(run.identity, _Item(run, like, found, begun)))
    return items


def _lines(planned: PlannedCell, items: list[_Item], times: _Times) -> Iterator[str]:
    """Yield a line for each search and each run."""
    searched = {run.identity: name for name, own in planned.by_search.items() for run in own}
    for name in planned.by_search:
        own = [item for item in items if searched.get(item.run.identity) == name]
        there = sum(item.completed is not None for item in own)
        yield f"search for {name}: {plural(len(own), 'run')}, {there} of them there{_about(own, times)}"
    for item in items:
        if item.run.identity not in searched:
            yield f"{item.run.name}: {item.state}{_about([item], times)}"


def _about(items: list[_Item], times: _Times) -> str:
    """Return what one of the items takes on average, to be put behind what is said of them."""
    known = [took for item in items if (took := times.seconds(item))]
    each = " each" if len(items) > 1 else ""
    return f", about {format_duration(fmean(known))}{each}" if known else ""


def _sum(items: list[_Item], times: _Times, jobs: int) -> str:
    missing = [item for item in items if not item.completed]
    known = [took for item in missing if (took := times.seconds(item)) is not None]
    lacking = f", without {len(missing) - len(known)} of them" if len(known) < len(missing) else ""
    span = f", about {format_duration(sum(known) / jobs)}{lacking}" if known else ""
    return f"{plural(len(missing), 'run')} to be made{span}."


def _expected(missing: list[_Item], times: _Times, jobs: int, records: Path) -> Iterator[str]:
    """Yield sentences about runs that are to be made."""
    known = [took for item in missing if (took := times.seconds(item)) is not None]
    if others := len(missing) - len(known):
        yield (
            f"No estimate of {others} of {len(missing)}: no record here is of such a run, and no step of it can be "
            "timed, as none is of a method or a model of your own."
        )
    if not known:
        return
    side = f", {format_duration(sum(known) / jobs)} with {jobs} at a time" if jobs > 1 else ""
    rooms = [room for item in missing if (room := times.room(item)) is not None]
    yield (
        f"About {format_duration(sum(known))} of computing{side}: {len(rooms)} by records of such runs, "
        f"{len(known) - len(rooms)} by timing a step."
    )
    at = next(place for place in (records, *records.parents) if place.is_dir())
    free = size_text(shutil.disk_usage(at).free)
    if rooms:
        yield f"The records of {len(rooms)} take about {size_text(sum(rooms))}; {free} are free in {at}."


class _Times:
    """What runs take: by the records that are here, else by timing a step, once for all runs that are alike.

    Parameters
    ----------
    cores : int
        Cores that a run may share out among its sites.
    """

    def __init__(self, archive: Archive, cores: int) -> None:
        self._cores, self._known = cores, _measured(archive)
        self._timed: dict[Kind, Estimate | None] = {}

    def seconds(self, item: _Item) -> float | None:
        """Return the seconds of the rounds that an item still has; None if they are not known."""
        if item.completed:
            return None
        rounds = item.run.config.rounds - (item.begun.done if item.begun else 0)
        if own := self._known.get(_kind(item.run.config.to_run_config())):
            return rounds * fmean(took for took, _ in own)
        kind = _kind(item.like.config.to_run_config())
        if kind not in self._timed:
            self._timed[kind] = rehearse(item.like.config)
        found = self._timed[kind]
        if found is None:
            return None
        return replace(found, processes=min(found.processes, self._cores), rounds=rounds).run

    def room(self, item: _Item) -> float | None:
        """Return the bytes of an item's record; None if there is no record of such a run."""
        own = self._known.get(_kind(item.run.config.to_run_config()))
        return fmean(taken for _, taken in own) if own else None


def _measured(archive: Archive) -> dict[Kind, list[tuple[float, int]]]:
    """Return what the records of each kind took: seconds of a round, and bytes of the record."""
    found: dict[Kind, list[tuple[float, int]]] = {}
    for run in archive.all_completed():
        if (seconds := _seconds(run)) is not None:
            found.setdefault(_kind(run.provenance["run-config"]), []).append((seconds, run.size))
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
    little = {k for k in settings if k.partition(".")[0] in _LITTLE or k in _NOISE}
    own |= {key: value for key, value in settings.items() if key not in little}
    own["sites"] = settings.get("federation.sites")
    own["private"] = any(settings.get(key) for key in _NOISE)
    return tuple(sorted((key, repr(value)) for key, value in own.items()))
