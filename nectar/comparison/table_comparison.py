"""A paper's table, column by column, and our numbers beside those that it prints."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from common.config.tables import ENDING
from common.storage.files import csv_text, write_text
from nectar.comparison.comparison import Comparison
from nectar.comparison.paper_table import Number, Printed
from nectar.comparison.rows import Row
from nectar.comparison.table_request import TableRequest
from nectar.comparison.tables import Results, Table, markdown_of, short, terminal_of

_NOTHING = "–"
_CAPTIONS = {
    "accuracy": "Accuracy in percent{network} after the last round, mean and sample standard deviation over the seeds",
    "floats": "Floats that all sites send up, a round",
    "rounds": "Rounds to the accuracy that stands behind the column, mean over the seeds that reach it",
}
_SMALL_NOTE = "Ours are small variants, of fewer images, rounds and steps: look for the paper's order, not its numbers."


@dataclass(frozen=True)
class Line:
    """One number of the paper's, and ours."""

    column: str
    row: str
    ours: str
    printed: Number
    source: str
    figure: str
    network: str


@dataclass(frozen=True)
class TableResults:
    """What a table came to.

    Parameters
    ----------
    title, command : str
        The table's title, and the words that ask for it again.
    small : bool
        Whether small variants were run.
    """

    title: str
    command: str
    columns: Mapping[str, Results]
    directories: Mapping[str, Path]
    lines: tuple[Line, ...]
    small: bool

    @property
    def failures(self) -> tuple[str, ...]:
        """A sentence for each run that failed, with its column."""
        return tuple(f"{label}: {f}" for label, own in self.columns.items() for f in own.failures)

    def terminal(self) -> str:
        """Return the numbers side by side for a terminal of 120 columns."""
        return terminal_of(self._tables(), self._notes())

    def markdown(self) -> str:
        """Return the numbers side by side as Markdown."""
        places = [f"{label}: {directory}" for label, directory in self.directories.items()]
        return markdown_of(self.title, self.command, self._tables(), [*self._notes(), *places])

    def csv(self) -> str:
        """Return a line a number."""
        head = ("column", "row", "figure", "network", "ours", "printed", "note", "source")
        rows = []
        for line in self.lines:
            ours = "" if line.ours == _NOTHING else line.ours
            place = (line.column, line.row, line.figure, line.network)
            rows.append((*place, ours, line.printed.text, line.printed.note, line.source))
        return csv_text(head, rows)

    def _tables(self) -> list[Table]:
        kinds = dict.fromkeys((line.source, line.figure, line.network) for line in self.lines)
        return [self._table(*kind) for kind in kinds]

    def _table(self, source: str, figure: str, network: str) -> Table:
        own = [
            x for x in self.lines if (x.source, x.figure, x.network) == (source, figure, network)
        ]
        of = f" of {network}" if network else ""
        rows = [(line.column, line.row, line.ours, line.printed.text) for line in own]
        return Table(
            f"{_CAPTIONS[figure].format(network=of)}; printed: {source}.",
            ("column", "row", "ours", "printed"),
            tuple(rows),
        )

    def _notes(self) -> list[str]:
        notes = [_SMALL_NOTE] if self.small else []
        notes += [
            f"{line.column}, {line.row}: {line.printed.note}."
            for line in self.lines
            if line.printed.note
        ]
        return [*notes, *(f"Failed: {failure}." for failure in self.failures)]


class TableComparison:
    """A table of which every column has been resolved and checked, and which can be carried out.

    Raises
    ------
    NectarError
        Before anything has started, as :class:`nectar.comparison.comparison.Comparison`.
    """

    def __init__(self, request: TableRequest, say: Callable[[str], None]) -> None:
        self._request = request
        self._say = say
        self._command = request.typed
        self._columns = {label: Comparison(own, say) for label, own in request.requests.items()}
        self.output = request.output or self._place()

    @property
    def comparisons(self) -> list[Comparison]:
        """The columns' comparisons."""
        return list(self._columns.values())

    def carry_out(self) -> TableResults:
        """Carry out the columns, one after the other, write the table's files, and return the results."""
        results = {}
        for number, (label, comparison) in enumerate(self._columns.items(), 1):
            self._say(f"Column {label}, {number} of {len(self._columns)}.")
            results[label] = comparison.carry_out()
        table = TableResults(
            self._request.table.title,
            self._command,
            results,
            {label: comparison.output for label, comparison in self._columns.items()},
            tuple(self._lines(results)),
            self._request.small,
        )
        self.output.mkdir(parents=True, exist_ok=True)
        write_text(self.output / "table.md", table.markdown())
        write_text(self.output / "table.csv", table.csv())
        return table

    def _place(self) -> Path:
        """Return the folder below the output directory that this table, with these rows and columns, has."""
        places = [comparison.output for comparison in self._columns.values()]
        digest = hashlib.sha256(" ".join(place.name for place in places).encode()).hexdigest()[:10]
        size = ENDING * self._request.small
        return places[0].parent / f"table-{self._request.table.name}{size}-{digest}"

    def _lines(self, results: Mapping[str, Results]) -> Iterator[Line]:
        for block in self._request.table.printed:
            for label, column in results.items():
                for row in column.rows:
                    yield self._line(block, label, row)

    def _line(self, block: Printed, label: str, row: Row) -> Line:
        printed = block.numbers.get(label, {}).get(row.label, Number(_NOTHING))
        network = self._columns[label].networks[row.label]
        ours = _OURS[block.figure](row, block, label, network)
        column = f"{label}, {block.targets[label]:g}" if label in block.targets else label
        return Line(column, row.label, ours, printed, block.source, block.figure, block.network)


def _accuracy(row: Row, block: Printed, label: str, network: str) -> str:
    """Write the mean accuracy in percent, of the block's network where it names one."""
    finals = [run.of(block.network, network) for run in row.whole]
    if not finals or any(math.isnan(final) for final in finals):
        return _NOTHING
    mean = f"{100 * statistics.fmean(finals):.2f}"
    return mean if len(finals) == 1 else f"{mean} ± {100 * statistics.stdev(finals):.2f}"


def _floats(row: Row, block: Printed, label: str, network: str) -> str:
    sent = row.per_round(lambda one: one.floats_up)
    return _NOTHING if math.isnan(sent) else f"{sent:.0f}"


def _rounds(row: Row, block: Printed, label: str, network: str) -> str:
    if label not in block.targets:
        return _NOTHING
    spent = row.to_target(block.targets[label])
    if spent.of and not spent.reached:
        return f">{max(run.rounds[-1].round for run in row.whole)}"
    part = "" if spent.reached == spent.of else f" ({spent.reached} of {spent.of})"
    return f"{short(spent.rounds)}{part}"


_OURS = {"accuracy": _accuracy, "floats": _floats, "rounds": _rounds}
