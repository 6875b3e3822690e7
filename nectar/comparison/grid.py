"""A grid of comparisons, carried out side by side, and its pivot: rows are methods, columns are cells."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.config.text import scalar
from common.errors import ConfigError, NectarError
from common.storage.files import csv_text, write_text
from nectar.charts import Series, lines, save
from nectar.comparison.comparison import Comparison, Plan
from nectar.comparison.files import ENDINGS
from nectar.comparison.grid_request import Cell, GridRequest
from nectar.comparison.latex import latex_of
from nectar.comparison.rows import FLAGS, Row
from nectar.comparison.run_scheduler import RunScheduler
from nectar.comparison.tables import WIDTH, Results, Table, markdown_of, number, terminal_of
from nectar.comparison.tuning import Axis
from nectar.comparison.variants import file_name

_NOTHING = "–"

#: values of an axis further apart than this are drawn on a logarithmic axis
_FAR_APART = 20


@dataclass(frozen=True)
class GridResults:
    """What a grid came to.

    Parameters
    ----------
    command : str
        The words that ask for it again.
    cells : mapping of Cell to Results or str
        The comparison of each cell, or the sentence that says why there is none.
    directories : mapping of Cell to Path
        Where the files of each comparison lie.
    """

    command: str
    axes: tuple[Axis, ...]
    labels: tuple[str, ...]
    cells: Mapping[Cell, Results | str]
    directories: Mapping[Cell, Path]

    @property
    def results(self) -> dict[Cell, Results]:
        """The cells that could be compared."""
        return {cell: own for cell, own in self.cells.items() if isinstance(own, Results)}

    @property
    def failures(self) -> tuple[str, ...]:
        """A sentence for each cell, and each run, that failed."""
        cells = [f"{c.label}: {own}" for c, own in self.cells.items() if isinstance(own, str)]
        runs = [failure for own in self.results.values() for failure in own.failures]
        return (*(cell.rstrip(".") for cell in cells), *runs)

    def row(self, label: str, cell: Cell) -> Row | None:
        """Return a method's runs in a cell; None where it has none."""
        own = self.results.get(cell)
        return None if own is None else next(r for r in own.rows if r.label == label)

    def terminal(self) -> str:
        """Return the pivot for a terminal of 120 columns."""
        return terminal_of(self._fitting(), self._notes())

    def markdown(self) -> str:
        """Return the pivot as Markdown."""
        places = [f"{cell.label}: {place}" for cell, place in self.directories.items()]
        title = f"{', '.join(self.labels)} over {' and '.join(a.key for a in self.axes)}"
        return markdown_of(
            title, self.command, [self.pivot(list(self.cells))], [*self._notes(), *places]
        )

    def latex(self) -> str:
        """Return the pivot for LaTeX, with a line of the head for each axis and the best of each column in bold."""
        cells = list(self.cells)
        table = self.pivot(cells)
        last = self.axes[-1]
        lowest = tuple(f"{last.name}={cell.values[-1]}" for cell in cells)
        spans, above, times = len(cells), [], 1
        for axis in self.axes[:-1]:
            spans //= len(axis.values)
            above.append([(f"{axis.name}={v}", spans) for v in axis.values] * times)
            times *= len(axis.values)
        return latex_of(
            self.command,
            [replace(table, header=(table.header[0], *lowest))],
            self._notes(),
            above=above,
            bold=self._best(cells),
        )

    def _best(self, cells: Sequence[Cell]) -> set[tuple[int, int]]:
        """Return row and column of the best mean of each column."""
        found = set()
        for column, cell in enumerate(cells, 1):
            rows = [self.row(label, cell) for label in self.labels]
            means = [-math.inf if row is None or not row.whole else row.mean for row in rows]
            best = max(means)
            found |= {(i, column) for i, mean in enumerate(means) if mean == best > -math.inf}
        return found

    def csv(self) -> str:
        """Return a line a cell, row and seed."""
        head = (*(a.key for a in self.axes), "row", "seed", "accuracy", "flags", "record")
        found: list[tuple[Any, ...]] = []
        for cell, own in self.results.items():
            for row in own.rows:
                for i, (seed, run) in enumerate(zip(row.seeds, row.runs, strict=True)):
                    final = "" if run is None or math.isnan(run.final) else run.final
                    record = "" if run is None else str(run.directory)
                    found.append((*cell.values, row.label, seed, final, row.flags(i), record))
        return csv_text(head, found)

    def pivot(self, cells: Sequence[Cell]) -> Table:
        """Return mean and spread of the accuracy: rows are methods, columns are ``cells``."""
        rows = [(label, *(self._entry(label, cell) for cell in cells)) for label in self.labels]
        return Table(
            "Accuracy after the last round, mean and sample standard deviation over the seeds.",
            ("method", *(cell.label for cell in cells)),
            tuple(rows),
        )

    def _entry(self, label: str, cell: Cell) -> str:
        row = self.row(label, cell)
        if row is None:
            return f"{_NOTHING}?"
        spread = "" if math.isnan(row.spread) else f" ± {number(row.spread)}"
        marks = {mark for i in range(len(row.seeds)) for mark in row.flags(i)}
        return f"{number(row.mean)}{spread}{''.join(m for m in FLAGS if m in marks)}"

    def _fitting(self) -> list[Table]:
        """Return the pivot in pieces that fit a terminal."""
        tables: list[Table] = []
        left = list(self.cells)
        while left:
            taken = len(left)
            while taken > 1 and _width(self.pivot(left[:taken])) > WIDTH:
                taken -= 1
            tables.append(self.pivot(left[:taken]))
            left = left[taken:]
        return tables

    def _notes(self) -> list[str]:
        rows = [row for own in self.results.values() for row in own.rows]
        used = {mark for row in rows for i in range(len(row.seeds)) for mark in row.flags(i)}
        used |= {"?"} if len(self.results) < len(self.cells) else set()
        notes = [
            f"{mark} at least one seed: {says}." for mark, says in FLAGS.items() if mark in used
        ]
        return [*notes, *(f"Failed: {failure}." for failure in self.failures)]


def _width(table: Table) -> int:
    widths = [
        max(len(row[i]) for row in (table.header, *table.rows)) for i in range(len(table.header))
    ]
    return sum(widths) + 2 * (len(widths) - 1)


class GridComparison:
    """A grid of which every cell has been resolved and checked, and which can be carried out.

    A cell whose data cannot be had, or cannot be divided so, costs that cell alone.

    Raises
    ------
    ConfigError
        Before anything has started, as :class:`nectar.comparison.comparison.Comparison`.
    NectarError
        If no cell can be had.
    """

    def __init__(self, request: GridRequest, say: Callable[[str], None]) -> None:
        self._request = request
        self._say = say
        self._cells: dict[Cell, Comparison] = {}
        self._refused: dict[Cell, str] = {}
        for cell, own in request.requests.items():
            try:
                self._cells[cell] = Comparison(own, say, cell.label)
            except ConfigError as error:
                raise ConfigError(f"{cell.label}: {error}") from None
            except NectarError as error:
                say(f"{cell.label} is left out: {error}")
                self._refused[cell] = str(error)
                if len(self._refused) == len(request.requests):
                    raise
        self.output = request.output or self._place()

    @property
    def comparisons(self) -> list[Comparison]:
        """The comparisons of the cells that can be had."""
        return list(self._cells.values())

    def carry_out(self) -> GridResults:
        """Run what is not there yet, write the files, and return the results."""
        scheduler = self.comparisons[0].scheduler(self.output / "logs")
        refused = dict(self._refused)
        plans: dict[Cell, Plan] = {}
        for cell, comparison in self._cells.items():
            try:
                plans[cell] = comparison.planned(scheduler)
            except NectarError as error:  # a search without a completed run
                self._say(f"{cell.label} is left out: {error}")
                refused[cell] = str(error)
        # All cells' runs are one heap, so that no core waits for the last run of a cell.
        scheduler.carry_out(task for plan in plans.values() for task in plan.tasks)
        results = self._concluded(plans, refused, scheduler)
        self._write(results)
        return results

    def _concluded(
        self, plans: Mapping[Cell, Plan], refused: Mapping[Cell, str], scheduler: RunScheduler
    ) -> GridResults:
        found: dict[Cell, Results | str] = {}
        for cell in self._request.requests:
            found[cell] = (
                self._cells[cell].concluded(plans[cell], scheduler)
                if cell in plans
                else refused[cell]
            )
        first = next(iter(self._request.requests.values()))
        return GridResults(
            self._request.typed,
            self._request.axes,
            tuple(variant.label for variant in first.variants),
            found,
            {cell: comparison.output for cell, comparison in self._cells.items()},
        )

    def _write(self, results: GridResults) -> None:
        self.output.mkdir(parents=True, exist_ok=True)
        write_text(self.output / "table.md", results.markdown())
        write_text(self.output / "table.tex", results.latex())
        write_text(self.output / "table.csv", results.csv())
        for axis in results.axes:
            _plot(self.output, results, axis)

    def _place(self) -> Path:
        """Return the folder below the output directory that this grid has."""
        names = " ".join(comparison.output.name for comparison in self.comparisons)
        digest = hashlib.sha256(names.encode()).hexdigest()[:10]
        return self.comparisons[0].records / f"grid-{digest}"


def _plot(directory: Path, results: GridResults, axis: Axis) -> None:
    """Draw accuracy against an axis of numbers: a line a row and combination of the other axes, with error bars."""
    values = [scalar(text) for text in axis.values]
    if len(values) < 2 or not all(type(value) in (int, float) for value in values):
        return
    x = {text: float(value) for text, value in zip(axis.values, values, strict=True)}  # type: ignore[arg-type]
    place = results.axes.index(axis)
    others: dict[str, list[Cell]] = {}
    for cell in results.cells:
        rest = [word for i, word in enumerate(cell.named) if i != place]
        others.setdefault(" ".join(rest), []).append(cell)
    series = [
        _series(
            f"{label} {other}".rstrip(),
            results,
            label,
            sorted(own, key=lambda c: x[c.values[place]]),
            x,
            place,
        )
        for label in results.labels
        for other, own in others.items()
    ]
    far = min(x.values()) > 0 and max(x.values()) > _FAR_APART * min(x.values())
    figure = lines(
        [one for one in series if one.x],
        title="Accuracy after the last round",
        x_label=axis.key,
        y_label="accuracy (mean ± standard deviation)",
        log_x=far,
    )
    for ending in ENDINGS:
        save(figure, directory / f"accuracy-{file_name(axis.key)}.{ending}")


def _series(
    name: str,
    results: GridResults,
    label: str,
    cells: Sequence[Cell],
    x: Mapping[str, float],
    place: int,
) -> Series:
    rows = [(x[cell.values[place]], results.row(label, cell)) for cell in cells]
    there = [(at, row) for at, row in rows if row is not None and row.whole]
    spreads = [row.spread for _, row in there]
    return Series(
        name,
        [at for at, _ in there],
        [row.mean for _, row in there],
        error=[0.0 if math.isnan(spread) else spread for spread in spreads],
    )
