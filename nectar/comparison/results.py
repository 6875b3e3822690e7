"""What was compared: `ComparisonResult` for rows over seeds, `GridResult` for a grid, `TableResult` for a paper's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.settings.sections import MEASURES
from nectar.comparison.frame import FLAGS, MORE, csv_of, curves, mean, spread, summary
from nectar.comparison.paper_table import Number, PaperTable, Printed
from nectar.comparison.request import Axis, Cell
from nectar.comparison.tables import PAGE, WIDTH, Results, TextTable, pieces
from nectar.comparison.tuning import Choice
from nectar.recorded_run import RecordedRun
from nectar.text import MISSING, capital, count, share, short, size

if TYPE_CHECKING:
    from pandas import DataFrame

_OVER_SEEDS = ", mean and sample standard deviation over the seeds"

#: rounds that a terminal shows; the Markdown has them all
_SHOWN_ROUNDS = 10


# -- rows over seeds ----------------------------------------------------------------------------


@dataclass(frozen=True, repr=False, eq=False)
class ComparisonResult(Results):
    """What a comparison of rows over seeds came to.

    Parameters
    ----------
    by_run, by_round : DataFrame
        A line for each run, and for each round of each, as :func:`nectar.comparison.frame.frames` returns them.
    rounds : int
        Rounds of the longest run.
    target : float
        The accuracy up to which rounds and bytes are counted; NaN without a completed run.
    chosen_target : bool
        Whether it was given, not derived.
    failures : tuple of str
        A sentence for each run that failed.
    measure : str
        What all runs are judged by.
    """

    by_run: DataFrame
    by_round: DataFrame
    rounds: int
    target: float
    chosen_target: bool
    choices: tuple[Choice, ...] = ()
    failures: tuple[str, ...] = ()
    measure: str = "accuracy"

    @property
    def accuracies(self) -> dict[str, dict[int, float]]:
        """The accuracy after the last round, by row and seed; a seed whose run failed is left out."""
        return self._by_seed("accuracy", self.by_run["completed"])

    @property
    def what(self) -> str:
        """What the runs are judged by, in words."""
        return MEASURES[self.measure]

    @property
    def runs(self) -> dict[str, dict[int, RecordedRun]]:
        """The runs, by row and seed; a seed that has none is left out."""
        records = self._by_seed("record", self.by_run["record"] != "")
        return {
            label: {seed: RecordedRun.open(Path(at)) for seed, at in own.items()}
            for label, own in records.items()
        }

    def _by_seed(self, figure: str, kept: Any) -> dict[str, dict[int, Any]]:
        found: dict[str, dict[int, Any]] = {label: {} for label in self.by_run["variant"]}
        for label, seed, value in self.by_run[kept][["variant", "seed", figure]].itertuples(
            index=False
        ):
            found[label][seed] = value
        return found

    @cached_property
    def summary(self) -> DataFrame:
        """A line for each row: means over its completed runs."""
        return summary(self.by_run, self.by_round)

    def tables(self, *, full: bool = False) -> list[TextTable]:
        """Return accuracy, cost, and accuracy by round if any was judged: a few rounds of many, or every one."""
        by_round = self._by_round(full)
        return [self._accuracy(), self._cost(), *([by_round] if len(by_round.header) > 1 else [])]

    def notes(self) -> list[str]:
        """Describe what the figures are, what their marks mean, and what was searched."""
        rows = self.summary
        several = bool(rows["spread"].notna().any())
        notes = ["± is the sample standard deviation over the seeds."] * several
        notes.append(f"The {self.what} is that after the last round, never the best so far.")
        whole, audited = rows["runs"].sum(), rows["audited"].sum()
        if audited:
            notes.append(
                "Found: the share of members that the strongest attack of `nectar audit images` finds where 1 % of "
                "controls are to be taken for some, and in brackets how many were; means over the runs that were "
                f"audited, {audited} of {whole}."
            )
        if rows["audited_in_part"].any():
            notes.append(
                "≥: the records do not keep what was sent in every round; more members may be found."
            )
        used = set("".join(self.by_run["flags"]))
        notes += [f"{mark} {meaning}." for mark, meaning in FLAGS.items() if mark in used]
        if not math.isnan(self.target):
            how = "as asked" if self.chosen_target else f"nine tenths of the best row's {self.what}"
            notes.append(
                f"To {self.target:g}: means over the runs that reach it ({how}), 'k of n' where not all do. Bytes are "
                "those of all sites."
            )
        searched = (note for choice in self.choices for note in _search_notes(choice))
        return [*notes, *self._notes_of_seconds(whole), *searched]

    def _notes_of_seconds(self, whole: int) -> Iterator[str]:
        done = self.by_run[self.by_run["completed"]]
        alone = done[done["alone"]]
        if len(alone) < whole:
            yield (
                "Seconds (all devices' computing, and the server's without its evaluation) are given of runs beside "
                f"which no other run of nectar went on: {len(alone)} of {whole}. `--alone` runs the others again, "
                "one at a time."
            )
        else:
            yield (
                "Seconds of a run: all devices' computing, and the server's without its evaluation; no other run of "
                "nectar went on beside any."
            )
        if len(hardware := sorted(set(alone["hardware"]))) > 1:
            yield f"Seconds come from different machines: {', '.join(hardware)}."

    def _accuracy(self) -> TextTable:
        rows, seeds = self.summary, list(self.by_run["seed"].unique())
        audited = rows["audited"].any()
        cells = []
        for row in rows.itertuples():
            own = self.by_run[self.by_run["variant"] == row.Index]
            each = "  ".join(f"{share(run.final)}{run.flags}" for run in own.itertuples())
            found = (_found(row),) if audited else ()
            cells.append((row.Index, _mean_and_spread(row.mean, row.spread), *found, each))
        ends = self.by_round[self.by_round["whole"]]
        lasts = ends.groupby(["variant", "seed"])["round"].max().unique()
        last = f"round {self.rounds}" if len(lasts) < 2 else "the row's last round"
        span = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
        header = ("method", self.what, *(("found (alarms)",) if audited else ()), span)
        return TextTable(
            f"{capital(self.what)} after {last}, and each seed's.", header, tuple(cells)
        )

    def _cost(self) -> TextTable:
        cells = []
        for row in self.summary.itertuples():
            part = "" if row.reached == row.runs else f" ({row.reached} of {row.runs})"
            sizes = (
                row.bytes_to_target,
                row.bytes_up_to_target,
                row.bytes_up,
                row.bytes_down,
                row.bytes,
            )
            spans = (row.seconds_devices, row.seconds_server)
            to_target = f"{count(row.rounds_to_target)}{part}"
            cells.append(
                (row.Index, to_target, *map(size, sizes), *(short(span, "s") for span in spans))
            )
        reach = "target" if math.isnan(self.target) else f"{self.target:g}"
        figures = (
            "bytes to it",
            "up to it",
            "up/round",
            "down/round",
            "in all",
            "devices",
            "server",
        )
        return TextTable(
            f"Cost of a run, mean over the seeds: rounds to {self.what} {reach}, bytes and bytes up until then; bytes "
            "up and down a round; bytes in all; computing on all devices together, and on the server.",
            ("method", f"to {reach}", *figures),
            tuple(cells),
        )

    def _by_round(self, every: bool) -> TextTable:
        found = curves(self.by_round)["mean"].unstack("round").sort_index(axis="columns")
        rows = found.reindex(self.by_run["variant"].unique())
        judged = [n for n in rows.columns if n]
        shown = shown_rounds(len(judged), len(judged) if every else _SHOWN_ROUNDS)
        numbers = [judged[position - 1] for position in shown]
        return TextTable(
            f"Mean {self.what} after each round.",
            ("method", *map(str, numbers)),
            tuple((label, *map(share, row)) for label, *row in rows[numbers].itertuples()),
        )


def _found(row: Any) -> str:
    """Return members found and false alarms, in percent, as means over the runs that were audited."""
    if not row.audited:
        return MISSING
    least = "≥ " if row.audited_in_part else ""
    return f"{least}{100 * row.found:.1f} % ({100 * row.false_alarms:.1f})"


def _search_notes(choice: Choice) -> Iterator[str]:
    tried = ", ".join(f"{' '.join(s)}: {share(choice.score(s))}" for s in choice.trials)
    seeds = len(next(iter(choice.trials.values())))
    over = "on a seed that is" if seeds == 1 else f"as the mean of {seeds} seeds that are"
    yield (
        f"Searched for {', '.join(choice.search.labels)} on the validation set, {over} not above: "
        f"{tried}. Chosen: {' '.join(choice.best)}."
    )
    if choice.edges:
        yield f"{' and '.join(choice.edges)} lies at the edge of what was tried: a better value may lie outside."


def shown_rounds(last: int, most: int) -> list[int]:
    """Return the rounds from 1 to ``last``, or ``most`` of them, evenly apart, the first and last included."""
    if last <= most:
        return list(range(1, last + 1))
    return sorted({1 + round(i * (last - 1) / (most - 1)) for i in range(most)})


def _pivot(what: str, header: tuple[str, ...], cells: tuple[tuple[str, ...], ...]) -> TextTable:
    over = _OVER_SEEDS if any("±" in cell for row in cells for cell in row) else ""
    return TextTable(f"{what} after the last round{over}.", header, cells)


def _mean_and_spread(accuracy: float, deviation: float) -> str:
    return share(accuracy) + ("" if math.isnan(deviation) else f" ± {share(deviation)}")


# -- a grid -------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False, eq=False)
class GridResult(Results):
    """What a grid came to: one table whose rows are methods and whose columns are combinations of values.

    Parameters
    ----------
    by_cell : mapping of Cell to ComparisonResult or str
        The comparison of each cell, or the sentence that says why there is none.
    """

    axes: tuple[Axis, ...]
    by_cell: Mapping[Cell, ComparisonResult | str]

    @property
    def compared(self) -> dict[Cell, ComparisonResult]:
        """The cells that could be compared."""
        return {c: own for c, own in self.by_cell.items() if isinstance(own, ComparisonResult)}

    @property
    def cells(self) -> dict[str, ComparisonResult]:
        """The comparison of each cell that could be compared, by its label, such as ``alpha=0.1 dataset=mnist``."""
        return {cell.label: own for cell, own in self.compared.items()}

    @property
    def parts(self) -> Mapping[str, Results]:
        """The cells that could be compared."""
        return self.cells

    @property
    def failures(self) -> tuple[str, ...]:
        """A sentence for each cell, and each run, that failed."""
        cells = [f"{c.label}: {own}" for c, own in self.by_cell.items() if isinstance(own, str)]
        runs = [failure for own in self.compared.values() for failure in own.failures]
        return (*(cell.rstrip(".") for cell in cells), *runs)

    @cached_property
    def by_run(self) -> DataFrame:
        """A line for each run of each cell; the accuracy is that after the last round."""
        from pandas import DataFrame

        keys = [axis.key for axis in self.axes]
        columns = [*keys, "row", "seed", "accuracy", "flags", "record", "cell", "whole"]
        columns += [*MORE, "measured"]
        lines = [
            run
            | dict(zip(keys, cell.values, strict=True))
            | {"row": run["variant"], "measured": run["final"]}
            | ({"accuracy": math.nan} if math.isnan(run["final"]) else {})
            | {"cell": cell.label, "whole": run["completed"]}
            for cell, own in self.compared.items()
            for run in own.by_run.to_dict("records")
        ]
        return DataFrame(lines, columns=columns, dtype=object).astype({"whole": bool})

    def pivot(self, figure: str, combine: Callable[[Sequence[Any]], Any]) -> DataFrame:
        """Return what a figure of the runs comes to, rows by cells; marks of all runs, else of the completed ones."""
        runs = self.by_run if figure == "flags" else self.by_run[self.by_run["whole"]]
        found = runs.pivot_table(figure, index="row", columns="cell", aggfunc=combine)
        rows = next(iter(self.by_cell)).variants
        return found.reindex(
            index=[row.label for row in rows], columns=[cell.label for cell in self.by_cell]
        )

    def csv(self) -> str:
        """Return a line for each cell, row and seed."""
        return csv_of(self.by_run.drop(columns="cell"))

    @cached_property
    def pivot_table(self) -> TextTable:
        """Mean and spread of the accuracy."""
        means, spreads = self.pivot("measured", mean), self.pivot("measured", spread)
        marks = self.pivot("flags", "".join).astype(object).fillna("?")
        cells = [
            (label, *map(_entry, means.loc[label], spreads.loc[label], marks.loc[label]))
            for label in means.index
        ]
        what = next((MEASURES[own.measure] for own in self.compared.values()), "accuracy")
        return _pivot(capital(what), ("method", *means.columns), tuple(cells))

    def tables(self, *, full: bool = False) -> list[TextTable]:
        """Return the table, in pieces that fit a terminal unless in full."""
        return [self.pivot_table] if full else pieces(self.pivot_table, WIDTH)

    def latex_tables(self) -> list[TextTable]:
        """Return the table with a line of the head for each axis and the best of each column in bold."""
        *upper, last = self.axes
        lowest = tuple(f"{last.name}={cell.values[-1]}" for cell in self.by_cell)
        covered, above, times = len(self.by_cell), [], 1
        for axis in upper:
            covered //= len(axis.values)
            above.append([(f"{axis.name}={v}", covered) for v in axis.values] * times)
            times *= len(axis.values)
        means = self.pivot("measured", mean).astype(float)
        best = means.eq(means.max()).to_numpy().nonzero()
        bold = {(int(i), int(j) + 1) for i, j in zip(*best, strict=True)}
        return [replace(self.pivot_table, header=("method", *lowest), above=above, bold=bold)]

    def notes(self) -> list[str]:
        """Describe what the marks mean."""
        missing = "?" if len(self.compared) < len(self.by_cell) else ""
        used = missing + "".join(self.by_run["flags"])
        return _notes_of_marks(used)


def _notes_of_marks(used: str) -> list[str]:
    return [f"{mark} at least one seed: {says}." for mark, says in FLAGS.items() if mark in used]


def _entry(accuracy: float, deviation: float, marks: str) -> str:
    return _mean_and_spread(accuracy, deviation) + "".join(m for m in FLAGS if m in marks)


# -- a paper's table ----------------------------------------------------------------------------

_CAPTIONS = {
    "accuracy": "Accuracy in percent{network} after the last round, mean and sample standard deviation over the seeds",
    "floats": "Floats that all sites send up, a round",
    "rounds": "Rounds to the accuracy that stands behind the column, mean over the seeds that reach it; after a plus "
    "those in which only images are made, which the paper does not count",
    "epsilon": "Epsilon of all rounds by the sites' ledgers, at the site where it is most, the largest of the seeds'",
}
_SMALL_NOTE = "Ours are small variants, of fewer images, rounds and steps: look for the paper's order, not its numbers."
_REFIT_NOTE = (
    "Reported runs train on all images, as the paper's: no round is their best, and the last one is reported. With "
    "data.validation=0.1 they hold a tenth back, as searches do."
)


@dataclass(frozen=True, repr=False, eq=False)
class TableResult(Results):
    """What a paper's table came to: our numbers beside those that it prints.

    Parameters
    ----------
    small : bool
        Whether small variants were run.
    left_out : mapping of str to str
        Why a column was not compared.
    """

    paper: PaperTable
    small: bool
    columns: Mapping[str, ComparisonResult]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def failures(self) -> tuple[str, ...]:
        """A sentence for each column, and each run, that failed."""
        columns = (f"{label}: {why.rstrip('.')}" for label, why in self.left_out.items())
        runs = (f"{label}: {f}" for label, own in self.columns.items() for f in own.failures)
        return (*columns, *runs)

    @property
    def parts(self) -> Mapping[str, Results]:
        """The columns."""
        return self.columns

    @cached_property
    def numbers(self) -> DataFrame:
        """A line for each number of the paper's and ours."""
        from pandas import DataFrame

        lines = []
        for block in self.paper.printed:
            for label, own in self.columns.items():
                target = f", {block.targets[label]:g}" if label in block.targets else ""
                for row in own.summary.itertuples():
                    number = block.numbers.get(label, {}).get(row.Index, Number(MISSING))
                    place = (f"{label}{target}", row.Index, block.figure, block.network)
                    ours = _OURS[block.figure](own, row, block, label)
                    if block.network and ours == number.text == MISSING:  # a row of another network
                        continue
                    lines.append((*place, ours, number.text, number.note, block.source))
        head = ["column", "row", "figure", "network", "ours", "printed", "note", "source"]
        return DataFrame(lines, columns=head, dtype=object)

    def csv(self) -> str:
        """Return a line for each number."""
        return csv_of(self.numbers.replace({"ours": {MISSING: ""}}))

    def tables(self, *, full: bool = False) -> list[TextTable]:
        """Return a table for each figure that the paper prints; of a table without printed numbers, the pivot."""
        if not self.paper.printed:
            return [self.pivot_table] if full else pieces(self.pivot_table, WIDTH)
        found = []
        kinds = self.numbers.groupby(["source", "figure", "network"], sort=False)
        for (source, figure, network), own in kinds:
            of = f"{', the mean' * (',' in network)} of {network}" if network else ""
            cells = own[["column", "row", "ours", "printed"]].itertuples(index=False, name=None)
            caption = f"{_CAPTIONS[figure].format(network=of)}; printed: {source}."
            found.append(TextTable(caption, ("column", "row", "ours", "printed"), tuple(cells)))
        return found

    @cached_property
    def pivot_table(self) -> TextTable:
        """Mean and spread of the accuracy, rows by columns."""
        rows = dict.fromkeys(label for own in self.columns.values() for label in own.summary.index)
        cells = tuple((row, *(_cell_of(own, row) for own in self.columns.values())) for row in rows)
        return _pivot("Accuracy", ("method", *self.columns), cells)

    def latex_tables(self) -> list[TextTable]:
        """Return the tables for LaTeX, in pieces that fit a page."""
        return [piece for table in self.tables(full=True) for piece in pieces(table, PAGE)]

    def notes(self) -> list[str]:
        """Describe what is to be known of the paper's numbers, or what the marks in a table without them mean."""
        if not self.paper.printed:
            flags = (flag for own in self.columns.values() for flag in own.by_run["flags"])
            return _notes_of_marks("".join(flags))
        noted = self.numbers[self.numbers["note"] != ""]
        notes = [f"{line.column}, {line.row}: {line.note}." for line in noted.itertuples()]
        refit = [_REFIT_NOTE] if self.paper.refit else []
        return [*([_SMALL_NOTE] if self.small else []), *refit, *notes]


def _cell_of(results: ComparisonResult, row: str) -> str:
    """Write a row's mean accuracy and its spread in a column, with its marks."""
    if row not in results.summary.index:
        return MISSING
    found, runs = results.summary.loc[row], results.by_run
    return _entry(found["mean"], found["spread"], "".join(runs[runs["variant"] == row]["flags"]))


def _accuracy(results: ComparisonResult, row: Any, block: Printed, label: str) -> str:
    """Write the mean accuracy in percent, of the block's network where it names one.

    Of several networks it is their mean: those of a row's one run, or of the rows that are called as it is and then
    by a network's name.
    """
    done = results.by_run[results.by_run["completed"]]
    networks = block.network.split(", ")
    of_each = []
    for network in networks:
        own = f"{row.Index} {network}"
        known = len(networks) > 1 and own in set(done["variant"])
        runs = done[done["variant"] == (own if known else row.Index)]
        figure = f"models.{network}" if network else "final"
        judged = runs.get(figure, [math.nan] * len(runs))
        of_each.append(dict(zip(runs["seed"], judged, strict=True)))
    seeds = [seed for seed in of_each[0] if all(seed in own for own in of_each)]
    finals = [mean([own[seed] for own in of_each]) for seed in seeds]
    if not finals or any(math.isnan(final) for final in finals):
        return MISSING
    deviation = f" ± {100 * spread(finals):.2f}" if len(finals) > 1 else ""
    return f"{100 * mean(finals):.2f}{deviation}"


def _floats(results: ComparisonResult, row: Any, block: Printed, label: str) -> str:
    return MISSING if math.isnan(row.floats_up) else f"{row.floats_up:.0f}"


def _epsilon(results: ComparisonResult, row: Any, block: Printed, label: str) -> str:
    done = results.by_run[(results.by_run["variant"] == row.Index) & results.by_run["completed"]]
    most = done["epsilon"].max(skipna=False)
    return MISSING if math.isnan(most) else f"{most:.3g}"


def _rounds(results: ComparisonResult, row: Any, block: Printed, label: str) -> str:
    if label not in block.targets:
        return MISSING
    rounds = results.by_round[
        (results.by_round["variant"] == row.Index) & results.by_round["whole"]
    ]
    reached = rounds[rounds["measured"] >= block.targets[label]].groupby("seed")["round"].min()
    making = rounds[rounds["makes_images"].astype(bool)]
    before = making[making["round"] <= making["seed"].map(reached).fillna(math.inf)]
    made = before.groupby("seed").size()
    if row.runs and reached.empty:
        most = int(made.max()) if len(made) else 0
        return f">{rounds['round'].max() - most}{f' + {most}' * bool(most)}"
    part = "" if len(reached) == row.runs else f" ({len(reached)} of {row.runs})"
    extra = mean(made.reindex(reached.index, fill_value=0))
    counted = count(mean(reached) - extra)
    return f"{counted}{f' + {count(extra)}' if extra > 0 else ''}{part}"


_OURS = {"accuracy": _accuracy, "floats": _floats, "rounds": _rounds, "epsilon": _epsilon}
