"""The plan of a comparison, without running it: existing records, and the rounds and disk space of the other runs."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nectar.comparison.comparison import Comparison
from nectar.comparison.request import Cell
from nectar.comparison.tuning import searches_of
from nectar.records.run_list import Archive
from nectar.text import plural, size

if TYPE_CHECKING:
    from pandas import DataFrame


def dry_run(comparison: Comparison) -> Iterator[str]:
    """Yield lines that list the runs block by block, then the rounds and disk space that the missing ones need.

    A block is a grid's cell or a table's column.
    """
    archive = Archive(comparison.records)
    runs = _runs(comparison, archive)
    several, what = len(comparison.planned) > 1, "Column" if comparison.request.table else "Cell"
    for number, planned in enumerate(comparison.planned, 1):
        own, label = runs[runs["block"] == number], planned.cell.label
        if several:
            yield f"{what} {label}, {number} of {len(comparison.planned)}."
        for name in planned.by_search:
            tried = own[own["search"] == name]
            yield f"search for {name}: {plural(len(tried), 'run')}, {tried['there'].sum()} cached"
        reported = own[own["search"] == ""]
        yield from reported["name"] + ": " + reported["state"]
        if several:
            yield f"{what} {label}: {_to_be_made(own)}\n"
    cached = runs["there"].sum()
    yield f"{plural(len(runs), 'run')}: {cached} cached, {len(runs) - cached} to do"
    if not runs["there"].all():
        yield _to_be_made(runs)
        yield from _room(runs[~runs["there"]], archive, comparison.records)
    if comparison.left_out:
        yield uncounted(comparison.left_out)


def uncounted(cells: Collection[Cell]) -> str:
    """Return a sentence with the number of runs of the cells left out."""
    runs = sum(len(cell.variants) * len(cell.seeds) for cell in cells)
    tried = sum(len(s.grid()) * len(cell.tune_seeds) for cell in cells for s in searches_of(cell))
    return f"{plural(runs + tried, 'run')} of the columns left out are not counted."


def _runs(comparison: Comparison, archive: Archive) -> DataFrame:
    """Return a line for each run, in the first block that has it: the search that it belongs to, and its state."""
    from pandas import DataFrame

    lines: dict[Any, dict[str, Any]] = {}
    for block, planned in enumerate(comparison.planned, 1):
        searched = [(name, run) for name, own in planned.by_search.items() for run in own]
        for search, run in [*searched, *(("", run) for run in planned.runs)]:
            if run.identity in lines:
                continue
            there, started, state = archive.completed(run.identity), None, "to be run"
            if there:
                state = f"cached ({there.id})"
            elif started := archive.unfinished(run.identity):
                state = f"to be continued ({started.id})"
            lines[run.identity] = {
                "block": block,
                "search": search,
                "name": run.name,
                "there": there is not None,
                "state": state,
                "rounds": 0 if there else run.config.rounds - (started.done if started else 0),
                "kind": (run.config.method, run.config.dataset),
            }
    return DataFrame(lines.values())


def _to_be_made(runs: DataFrame) -> str:
    rounds = plural(int(runs["rounds"].sum()), "round")
    return f"{plural(int((~runs['there']).sum()), 'run')} to do, {rounds} in all."


def _room(missing: DataFrame, archive: Archive, place: Path) -> Iterator[str]:
    """Yield the expected size of the records, estimated from existing ones of the same method and data set."""
    sizes: dict[tuple[Any, Any], list[int]] = {}
    for record in archive.all_completed():
        stated = record.provenance["run-config"]
        sizes.setdefault((stated.get("method"), stated.get("dataset")), []).append(record.size)
    known = [sum(own) / len(own) for kind in missing["kind"] if (own := sizes.get(kind))]
    if known:
        at = next(around for around in (place, *place.parents) if around.is_dir())
        yield (
            f"The records of {len(known)} take about {size(sum(known))}, as others of their method and data set; "
            f"{size(shutil.disk_usage(at).free)} are free in {at}."
        )
