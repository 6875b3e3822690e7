"""What a comparison would run, without running it: what is there, and the rounds and room that the rest takes."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from nectar.comparison.comparison import Comparison, PlannedCell
from nectar.comparison.request import Cell
from nectar.comparison.scheduler import PlannedRun
from nectar.comparison.tuning import searches_of
from nectar.records.record import RunRecord
from nectar.records.run_list import Archive
from nectar.text import plural, size


@dataclass(frozen=True)
class _Item:
    """A run of the comparison, and its record, completed or begun, if it has one."""

    run: PlannedRun
    completed: RunRecord | None
    begun: RunRecord | None

    @property
    def state(self) -> str:
        if self.completed:
            return f"there ({self.completed.id})"
        return f"goes on ({self.begun.id})" if self.begun else "to be run"

    @property
    def rounds(self) -> int:
        """Rounds that are still to be done."""
        done = self.begun.done if self.begun else 0
        return 0 if self.completed else self.run.config.rounds - done


def dry_run(comparison: Comparison) -> Iterator[str]:
    """Yield, block by block, which runs are there, and at last how many rounds and how much room the others take.

    A block is a grid's cell or a table's column.
    """
    archive = Archive(comparison.records)
    seen: dict[Any, _Item] = {}
    blocks = [(planned, _items(planned, archive, seen)) for planned in comparison.planned]
    what = "Column" if comparison.request.table else "Cell"
    for number, (planned, items) in enumerate(blocks, 1):
        if len(blocks) > 1:
            yield f"{what} {planned.cell.label}, {number} of {len(blocks)}."
        yield from _lines(planned, items)
        if len(blocks) > 1:
            yield f"{what} {planned.cell.label}: {_to_be_made(items)}\n"
    there = sum(item.completed is not None for item in seen.values())
    yield f"{plural(len(seen), 'run')}, {there} of them there already."
    if there < len(seen):
        yield _to_be_made(seen.values())
        missing = [item for item in seen.values() if not item.completed]
        yield from _room(missing, archive, comparison.records)
    if comparison.left_out:
        yield uncounted(comparison.left_out)


def uncounted(cells: Collection[Cell]) -> str:
    """Return how many runs the cells would have that are left out, as a sentence."""
    runs = sum(len(cell.variants) * len(cell.seeds) for cell in cells)
    tried = sum(len(s.grid()) * len(cell.tune_seeds) for cell in cells for s in searches_of(cell))
    return f"{plural(runs + tried, 'run')} of what is left out are not counted."


def _items(planned: PlannedCell, archive: Archive, seen: dict[Any, _Item]) -> list[_Item]:
    """Return the runs of a cell that no cell before has."""
    items = []
    for run in (*planned.trials, *planned.runs):
        if run.identity not in seen:
            found = archive.completed(run.identity)
            begun = None if found else archive.unfinished(run.identity)
            items.append(seen.setdefault(run.identity, _Item(run, found, begun)))
    return items


def _lines(planned: PlannedCell, items: list[_Item]) -> Iterator[str]:
    """Yield a line for each search and each run."""
    searched = {run.identity: name for name, own in planned.by_search.items() for run in own}
    for name in planned.by_search:
        own = [item for item in items if searched.get(item.run.identity) == name]
        there = sum(item.completed is not None for item in own)
        yield f"search for {name}: {plural(len(own), 'run')}, {there} of them there"
    for item in items:
        if item.run.identity not in searched:
            yield f"{item.run.name}: {item.state}"


def _to_be_made(items: Collection[_Item]) -> str:
    missing = [item for item in items if not item.completed]
    rounds = plural(sum(item.rounds for item in missing), "round")
    return f"{plural(len(missing), 'run')} to be made, of {rounds}."


def _room(missing: list[_Item], archive: Archive, place: Path) -> Iterator[str]:
    """Yield what the records of runs will take, as far as records of their method and data set are here."""
    sizes: dict[tuple[Any, Any], list[int]] = {}
    for record in archive.all_completed():
        stated = record.provenance["run-config"]
        sizes.setdefault((stated.get("method"), stated.get("dataset")), []).append(record.size)
    of_runs = [sizes.get((item.run.config.method, item.run.config.dataset)) for item in missing]
    known = [fmean(found) for found in of_runs if found]
    if known:
        at = next(around for around in (place, *place.parents) if around.is_dir())
        yield (
            f"The records of {len(known)} take about {size(sum(known))}, as others of their method and data set; "
            f"{size(shutil.disk_usage(at).free)} are free in {at}."
        )
