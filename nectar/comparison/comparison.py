"""A comparison from the request to its tables: plan, search, run, write.

`Comparison` has one cell, the cells of a grid, or the columns of a paper's table. `PlannedCell` is one of
them, whose runs have been resolved and checked.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from common.config.resolved import Config
from common.config.tables import ENDING
from common.errors import ConfigError, NectarError
from nectar.comparison.files import write, write_facts
from nectar.comparison.frame import frames
from nectar.comparison.request import Cell, ComparisonRequest, Variant
from nectar.comparison.results import Results, of_cells, of_rows
from nectar.comparison.scheduler import PlannedRun, Say, Scheduler, plan
from nectar.comparison.tuning import Choice, Search, choose, searches_of
from nectar.records.record import RunRecord
from nectar.records.run_list import Archive
from nectar.text import plural
from strategies.exchange.membership import some_of


class PlannedCell:
    """A cell of which every run has been resolved and checked.

    Parameters
    ----------
    name : str
        What runs of a grid are called by.

    Raises
    ------
    NectarError
        A configuration that cannot be, two rows that are one, a search without a validation set.
    """

    def __init__(self, cell: Cell, name: str = "") -> None:
        self.cell, self.options, self._name = cell, cell.options, name
        self.searches = searches_of(cell)
        firsts = [Choice(search, {search.grid()[0]: ()}) for search in self.searches]
        searched = {label for search in self.searches for label in search.labels}
        runs = plan(cell, _chosen(cell, firsts), cell.seeds)
        for tuned in (False, True):
            _refuse_duplicates(r for r in runs if (r.variant.label in searched) == tuned)
        trials = {
            search.name: plan(cell, list(map(search.candidate, search.grid())), cell.tune_seeds)
            for search in self.searches
        }
        for own in trials.values():
            _require_validation(own[0].config)
        self.records = runs[0].config.output_dir
        content = [[run.variant.label, run.identity.key] for run in runs]
        content += [[name, run.identity.key] for name, own in trials.items() for run in own]
        self.output = cell.output or self.records / f"compare-{_digest(json.dumps(content))}"
        self.runs = self._named(runs)
        self.by_search = {name: self._named(own) for name, own in trials.items()}
        self.choices: list[Choice] = []

    @property
    def trials(self) -> list[PlannedRun]:
        """The runs of the searches."""
        return [run for own in self.by_search.values() for run in own]

    def _named(self, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
        return [run.within(self._name, self.output.name) for run in runs]

    def search(self, scheduler: Scheduler, say: Say) -> None:
        """Carry out the searches; from then on the runs are those of what they chose."""
        self.choices = [self._search(search, scheduler, say) for search in self.searches]
        if self.choices:
            chosen = _chosen(self.cell, self.choices)
            self.runs = self._named(plan(self.cell, chosen, self.cell.seeds))

    def _search(self, search: Search, scheduler: Scheduler, say: Say) -> Choice:
        runs = self.by_search[search.name]
        say(
            f"Search for {search.name}: {len(search.grid())} combinations, scored on the validation set."
        )
        scheduler.carry_out(runs, search=True)
        trials = {}
        for settings in search.grid():
            label = search.candidate(settings).label
            own = (run for run in runs if run.variant.label == label)
            trials[settings] = tuple(_validation(run, scheduler.archive) for run in own)
        failed = [f"{r.name}: {why}" for r in runs if (why := scheduler.failures.get(r.name))]
        choice = choose(search, trials, some_of(failed))
        best = choice.best
        say(f"Chosen for {search.name}: {' '.join(best)} (validation {choice.score(best):.4f}).")
        return choice

    def conclude(self, scheduler: Scheduler) -> Results:
        """Read the runs, write the cell's files, and return the results."""
        runs: dict[str, dict[int, RunRecord | None]] = {v.label: {} for v in self.cell.variants}
        configs: dict[str, Config] = {}
        for run in self.runs:
            label = run.variant.label
            runs[label][run.seed] = _record(run, scheduler.archive)
            configs.setdefault(label, run.config)
        names = {run.name for run in (*self.runs, *self.trials)}
        failures = scheduler.failures.items()
        results = of_rows(
            _title(configs.values()),
            self.options.typed,
            self.output,
            runs,
            target=self.options.target,
            configs=configs,
            rounds=max(run.config.rounds for run in self.runs),
            choices=tuple(self.choices),
            failed=tuple(f"{n}: {why}" for n, why in failures if n in names),
            measure=self.runs[0].config.evaluation.measure,
        )
        facts = {
            "code": {run.variant.label: run.identity.code for run in self.runs},
            "seeds": list(self.cell.seeds),
            "search seeds": list(self.cell.tune_seeds) if self.choices else [],
        }
        write(results)
        write_facts(results, configs, facts)
        return results


class Comparison:
    """A comparison of which every cell has been resolved and checked.

    A cell of a grid, or a column of a table, whose data cannot be had or cannot be divided so costs itself alone.

    Attributes
    ----------
    left_out : dict of Cell to str
        Why a cell is not compared.

    Parameters
    ----------
    say : callable
        Called with each step, in a sentence.

    Raises
    ------
    NectarError
        Before anything has started, as `PlannedCell`; from a grid or a table if none of its cells can be had.
    """

    def __init__(self, request: ComparisonRequest, say: Say) -> None:
        self.request, self.options, self._say = request, request.options, say
        self.cells: dict[Cell, PlannedCell] = {}
        self.left_out: dict[Cell, str] = {}
        for cell in request.cells:
            if request.axes or request.table:
                self._plan_one_of_several(cell, cell.label if request.axes else "")
            else:
                self.cells[cell] = PlannedCell(cell)
        self.planned = list(self.cells.values())
        _require_one_measure(self.planned, request.table.name if request.table else "")
        self.records = self.planned[0].records
        self.output = self.options.folder or self._place()

    def _plan_one_of_several(self, cell: Cell, name: str) -> None:
        try:
            self.cells[cell] = PlannedCell(cell, name)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}" if name else str(error)) from None
        except NectarError as error:
            self._leave_out(cell, error)

    def _leave_out(self, cell: Cell, error: NectarError) -> None:
        """Note why a cell is not compared; raise the error if no cell is left."""
        self._say(f"{cell.label} is left out: {error}")
        self.left_out[cell] = str(error)
        if len(self.left_out) == len(self.request.cells):
            raise error

    @property
    def count_of_left_out(self) -> str:
        """A sentence with the number of cells left out; empty if there are none."""
        what = "cells" if self.request.axes else "columns"
        number, of = len(self.left_out), len(self.request.cells)
        return f"{number} of {of} {what} cannot be compared and were left out." if number else ""

    def _place(self) -> Path:
        """Return the folder below the output directory for these rows and cells."""
        table = self.request.table
        if table is None and not self.request.axes:
            return self.planned[0].output
        digest = _digest(" ".join(planned.output.name for planned in self.planned))
        kind = f"table-{table.name}{ENDING * self.options.small}" if table else "grid"
        return self.planned[0].output.parent / f"{kind}-{digest}"

    def scheduler(self, logs: Path | None = None) -> Scheduler:
        """Return the scheduler of the runs."""
        return Scheduler(self.records, logs or self.output / "logs", self.options, self._say)

    def carry_out(self) -> Results:
        """Run what is not cached, write the files, and return the results."""
        request, options = self.request, self.options
        if request.axes:
            found = self._carry_out_grid()
            rows = ", ".join(variant.label for variant in request.cells[0].variants)
            title = f"{rows} over {' and '.join(axis.key for axis in request.axes)}"
        elif request.table is not None:
            found = self._carry_out_table()
            title = request.table.title
        else:
            return self._carry_out_cell(self.planned[0])
        by_cell = {cell: found.get(cell) or self.left_out[cell] for cell in request.cells}
        results = of_cells(
            title,
            options.typed,
            self.output,
            by_cell,
            request.axes,
            paper=request.table,
            small=options.small,
        )
        write(results)
        return results

    def _carry_out_cell(self, planned: PlannedCell) -> Results:
        scheduler = self.scheduler(planned.output / "logs")
        planned.search(scheduler, self._say)
        scheduler.carry_out(planned.runs)
        return planned.conclude(scheduler)

    def _carry_out_grid(self) -> dict[Cell, Results]:
        scheduler, searched = self.scheduler(), {}
        for cell, planned in self.cells.items():
            try:
                planned.search(scheduler, self._say)
                searched[cell] = planned
            except NectarError as error:  # a search without a completed run
                self._leave_out(cell, error)
        # All cells' runs are carried out together, so that no core waits for the last run of a cell.
        scheduler.carry_out(run for planned in searched.values() for run in planned.runs)
        return {cell: planned.conclude(scheduler) for cell, planned in searched.items()}

    def _carry_out_table(self) -> dict[Cell, Results]:
        columns = {}
        for number, (cell, planned) in enumerate(self.cells.items(), 1):
            self._say(f"Column {cell.label}, {number} of {len(self.cells)}.")
            columns[cell] = self._carry_out_cell(planned)
        return columns


def _chosen(cell: Cell, choices: Sequence[Choice]) -> list[Variant]:
    """Return the rows as they are reported, with the best settings of their searches."""
    best = {label: choice.best for choice in choices for label in choice.search.labels}
    rows = [row.with_settings(best.get(row.label, ())) for row in cell.variants]
    return [row.with_settings(cell.reported_by(row)) for row in rows]


def _require_one_measure(planned: Sequence[PlannedCell], table: str) -> None:
    """Refuse runs of different measures in one table, and others than accuracy in one of conf/table: ConfigError."""
    found = {run.config.evaluation.measure: run.name for each in planned for run in each.runs}
    if table and set(found) != {"accuracy"}:
        raise ConfigError(f"table={table} compares accuracies: leave evaluation.measure out.")
    if len(found) > 1:
        (one, name), (other, named) = list(found.items())[:2]
        raise ConfigError(
            f"{name!r} is judged by {one} and {named!r} by {other} (evaluation.measure), which cannot share a "
            "column: give all the same measure, or compare them separately."
        )


def _refuse_duplicates(runs: Iterable[PlannedRun]) -> None:
    """Refuse two rows that are one and the same run; ConfigError naming both."""
    seen: dict[str, PlannedRun] = {}
    for run in runs:
        first = seen.setdefault(run.identity.key, run)
        if first.variant.label != run.variant.label:
            raise ConfigError(
                f"{first.variant.label!r} and {run.variant.label!r} resolve to the same configuration: leave one "
                "out, or set what distinguishes them."
            )


def _require_validation(config: Config) -> None:
    """Refuse a search that would have to use the test set."""
    if config.settings.trains_on_validation:
        raise ConfigError(
            f"--tune judges by the validation split, from which method={config.method} learns: leave it out of the "
            "search."
        )
    at_server = config.data.validation > 0 and config.evaluation.on in ("server", "both")
    if not (at_server or config.data.validated_at_sites):
        raise ConfigError(
            "--tune judges by the validation split, which is empty: set data.validation above 0, such as 0.1, with "
            "evaluation.on=server or both, or with data.validation_at=sites."
        )


def _record(run: PlannedRun, archive: Archive) -> RunRecord | None:
    return archive.completed(run.identity) or archive.unfinished(run.identity)


def _validation(run: PlannedRun, archive: Archive) -> float:
    """Return a run's validation accuracy after its result round; NaN if it did not complete."""
    (line,) = frames({"": {0: _record(run, archive)}}, None)[0].to_dict("records")
    return float(line["validation"]) if line["completed"] else math.nan


def _title(configs: Iterable[Config]) -> str:
    """Return the title: data set, sites, division and rounds, with every value where rows differ."""
    parts = zip(*map(_about, configs), strict=True)
    return ", ".join(" or ".join(dict.fromkeys(each)) for each in parts)


def _about(config: Config) -> tuple[str, ...]:
    division = config.partition
    drawn = division.kind in ("dirichlet", "dirichlet_groups")
    how = f"{division.kind} {division.alpha:g}" if drawn else division.kind
    return (
        config.dataset,
        plural(config.federation.sites, "site"),
        how,
        plural(config.rounds, "round"),
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]


# ---- shards --------------------------------------------------------------------------------------
# A comparison's runs as commands and as shards for other machines.


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
            "--only divides runs that are known beforehand, but these rows are tuned: give every task of the array "
            "the same command without --only, and each carries out what no other has."
        )
    runs = {run.identity: run for planned in comparison.planned for run in planned.runs}
    return list(runs.values())[number - 1 :: of]


def commands(comparison: Comparison) -> str:
    """Return a command for each run, a line each with the run's name after it: the comparison's, for one shard.

    Raises
    ------
    ConfigError
        If rows are searched.
    """
    names = [run.name for run in shard(comparison, 1, 1)]
    line = comparison.options.line
    return "\n".join(f"{line} --only {k}/{len(names)}  # {name}" for k, name in enumerate(names, 1))
