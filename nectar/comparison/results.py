"""Results of a comparison as one frame of runs: rows over seeds, a grid's cells, or a paper's columns."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import one_line
from common.settings.sections import MEASURES
from nectar.comparison.frame import FLAGS, MORE, Runs, csv_of, curves, frames, mean, spread, summary
from nectar.comparison.paper_table import Number, PaperTable, Printed
from nectar.comparison.request import Axis, Cell
from nectar.comparison.tables import WIDTH, Table
from nectar.comparison.tuning import Choice
from nectar.recorded_run import RecordedRun
from nectar.text import MISSING, capital, count, share, short, size

if TYPE_CHECKING:
    from pandas import DataFrame

    from common.config.resolved import Config

#: rounds that a terminal shows; the Markdown has them all
_SHOWN_ROUNDS = 10


@dataclass(frozen=True, repr=False, eq=False)
class Results:
    """The results of a comparison; a terminal or a notebook shows them as tables.

    Parameters
    ----------
    command : str
        The words that ask for it again.
    directory : Path
        Where its files are.
    by_run, by_round : DataFrame
        A line for each run, and for each round of each, as :func:`nectar.comparison.frame.frames` returns them; of
        several cells with the columns ``cell`` and one for each axis of a grid.
    by_cell : mapping of Cell to Results or str
        The results of each cell of a grid or column of a paper's table, or why it could not be compared; empty for rows
        over seeds.
    rounds : int
        Rounds of the longest run.
    target : float
        The accuracy up to which rounds and bytes are counted; NaN without a completed run.
    chosen_target : bool
        Whether it was given, not derived.
    failed : tuple of str
        A sentence for each run that failed.
    measure : str
        What all runs are judged by.
    paper : PaperTable or None
        The paper's table whose columns are the cells.
    small : bool
        Whether small variants of the paper's columns were run.
    """

    title: str
    command: str
    directory: Path
    by_run: DataFrame
    by_round: DataFrame
    by_cell: Mapping[Cell, Results | str] = field(default_factory=dict)
    rounds: int = 0
    target: float = math.nan
    chosen_target: bool = False
    choices: tuple[Choice, ...] = ()
    failed: tuple[str, ...] = ()
    measure: str = "accuracy"
    axes: tuple[Axis, ...] = ()
    paper: PaperTable | None = None
    small: bool = False

    def __repr__(self) -> str:
        return self.table

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.table)}</pre>"

    @property
    def cells(self) -> dict[str, Results]:
        """The cells of a grid that could be compared, by label, such as ``alpha=0.1 dataset=mnist``."""
        return {c.label: own for c, own in self.by_cell.items() if isinstance(own, Results)}

    @property
    def columns(self) -> dict[str, Results]:
        """The columns of a paper's table that could be compared."""
        return self.cells

    @property
    def failures(self) -> tuple[str, ...]:
        """A sentence for each cell that could not be compared, and for each run that failed."""
        cells = [(c.label, own) for c, own in self.by_cell.items() if isinstance(own, str)]
        runs = [(label, one) for label, own in self.cells.items() for one in own.failures]
        named = (f"{label}: {one.removeprefix(f'{label}: ')}" for label, one in cells + runs)
        return (*self.failed, *(one.rstrip(".") for one in named))

    @property
    def what(self) -> str:
        """The name of the measure."""
        return MEASURES[self.measure]

    @property
    def accuracies(self) -> dict[str, dict[int, float]]:
        """The accuracy after the last round, by row and seed; a seed whose run failed is left out."""
        return self._by_seed("accuracy", self.by_run["completed"])

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
        own = self.by_run[kept]
        for label, seed, value in zip(own["variant"], own["seed"], own[figure], strict=True):
            found[label][seed] = value
        return found

    @cached_property
    def summary(self) -> DataFrame:
        """A line for each row: means over its completed runs."""
        return summary(self.by_run, self.by_round)

    @cached_property
    def tables(self) -> list[Table]:
        """The tables: of rows over seeds accuracy, cost and curves; else a paper's numbers, or rows by cells."""
        if not self.by_cell:
            return [_accuracy(self), _cost(self), *_rounds(self)]
        return list(_printed(self)) if self.paper and self.paper.printed else [pivot(self)]

    @property
    def notes(self) -> list[str]:
        """What the figures are, what their marks mean, what was searched, and what failed."""
        if not self.by_cell:
            notes = _notes(self)
        elif self.paper and self.paper.printed:
            notes = _notes_of_paper(self, self.paper)
        else:
            used = "".join(self.by_run["flags"]) + "?" * (len(self.cells) < len(self.by_cell))
            notes = [f"{m} at least one seed: {says}." for m, says in FLAGS.items() if m in used]
        return [*notes, *(f"Failed: {failure}." for failure in self.failures)]

    @property
    def table(self) -> str:
        """The tables as text of 120 columns."""
        notes = textwrap.TextWrapper(
            WIDTH, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
        )
        parts = [*(table.text() for table in self.tables), "\n".join(map(notes.fill, self.notes))]
        return "\n\n".join(filter(None, parts))

    def markdown(self) -> str:
        """Return the tables as Markdown, after the command that makes them."""
        places = [f"{label}: {cell.directory}" for label, cell in self.cells.items()]
        notes = "\n".join(f"- {note}" for note in [*self.notes, *places])
        tables = (table.markdown() for table in self.tables)
        parts = [f"# {self.title}", f"```\n{self.command}\n```", *tables, notes]
        return "\n\n".join(parts) + "\n"

    def latex(self) -> str:
        r"""Return the tables as ``table`` environments, to be read by ``\input``; notes are in comments."""
        head = [f"% {one_line(each)}" for each in (self.command, r"\usepackage{booktabs,graphicx}")]
        floats = [one for table in self.tables for one in table.latex()]
        notes = "\n".join(f"% {one_line(each)}" for each in self.notes)
        return "\n\n".join(["\n".join(head), *floats, notes]).rstrip() + "\n"

    def csv(self) -> str:
        """Return a line for each run, or for each number of a paper's and ours."""
        if self.paper is not None:
            return csv_of(numbers(self, self.paper).replace({"ours": {MISSING: ""}}))
        if not self.axes:
            return csv_of(self.by_run)
        runs = self.by_run.rename(columns={"variant": "row"})
        runs["accuracy"] = runs["accuracy"].where(runs["final"].notna())
        keys = [axis.key for axis in self.axes]
        return csv_of(runs, [*keys, "row", "seed", "accuracy", "flags", "record", *MORE])


def of_rows(
    title: str,
    command: str,
    directory: Path,
    runs: Runs,
    *,
    target: float | None = None,
    configs: Mapping[str, Config] | None = None,
    rounds: int = 0,
    **more: Any,
) -> Results:
    """Return the results of rows over seeds; ``more`` are further fields of `Results`."""
    by_run, by_round, goal = frames(runs, target, configs, rounds)
    more |= {"rounds": rounds, "target": goal, "chosen_target": target is not None}
    return Results(title, command, directory, by_run, by_round, **more)


def of_cells(
    title: str,
    command: str,
    directory: Path,
    by_cell: Mapping[Cell, Results | str],
    axes: tuple[Axis, ...] = (),
    **more: Any,
) -> Results:
    """Return the results of a grid's cells or a paper's columns as one frame."""
    from pandas import concat

    compared = {c: own for c, own in by_cell.items() if isinstance(own, Results)}
    frames = [
        [
            frame.assign(cell=c.label, **dict(zip((a.key for a in axes), c.values, strict=False)))
            for c, own in compared.items()
            for frame in [getattr(own, name)]
        ]
        for name in ("by_run", "by_round")
    ]
    by_run, by_round = (concat(each, ignore_index=True) for each in frames)
    measure = next((own.measure for own in compared.values()), "accuracy")
    return Results(
        title, command, directory, by_run, by_round, by_cell, measure=measure, axes=axes, **more
    )


# -- rows over seeds ----------------------------------------------------------------------------


def _with_spread(accuracy: float, deviation: float, marks: str = "") -> str:
    over = "" if math.isnan(deviation) else f" ± {share(deviation)}"
    return share(accuracy) + over + "".join(mark for mark in FLAGS if mark in marks)


def _table(caption: str, columns: Mapping[str, Sequence[str]], labels: Any, **more: Any) -> Table:
    from pandas import DataFrame, Index

    return Table(caption, DataFrame(columns, index=Index(labels, name="method")), **more)


def _accuracy(results: Results) -> Table:
    rows, runs = results.summary, results.by_run
    columns = {results.what: list(map(_with_spread, rows["mean"], rows["spread"]))}
    if rows["audited"].any():
        columns["found (alarms)"] = [_found(row) for row in rows.itertuples()]
    for seed, own in runs.groupby("seed", sort=False):
        texts = dict(zip(own["variant"], own["final"].map(share) + own["flags"], strict=True))
        columns[f"seed {seed}"] = [texts.get(label, MISSING) for label in rows.index]
    ends = (
        results.by_round[results.by_round["completed"]].groupby(["variant", "seed"])["round"].max()
    )
    last = f"round {results.rounds}" if ends.nunique() < 2 else "the row's last round"
    caption = f"{capital(results.what)} after {last}, and each seed's."
    return _table(caption, columns, rows.index)


def _found(row: Any) -> str:
    """Return members found and false alarms, in percent, as means over the runs that were audited."""
    if not row.audited:
        return MISSING
    least = "≥ " if row.audited_in_part else ""
    return f"{least}{100 * row.found:.1f} % ({100 * row.false_alarms:.1f})"


def _cost(results: Results) -> Table:
    rows = results.summary
    reach = "target" if math.isnan(results.target) else f"{results.target:g}"
    counted = zip(rows["rounds_to_target"], rows["reached"], rows["runs"], strict=True)
    sizes = {
        "bytes to it": "bytes_to_target",
        "up to it": "bytes_up_to_target",
        "up/round": "bytes_up",
        "down/round": "bytes_down",
        "in all": "bytes",
    }
    spans = {"devices": "seconds_devices", "server": "seconds_server"}
    columns = {
        f"to {reach}": [count(to) + f" ({k} of {n})" * (k < n) for to, k, n in counted],
        **{name: [size(value) for value in rows[figure]] for name, figure in sizes.items()},
        **{name: [short(value, "s") for value in rows[figure]] for name, figure in spans.items()},
    }
    caption = (
        f"Cost of a run, mean over the seeds: rounds to {results.what} {reach}, bytes and bytes up until then; bytes "
        "up and down a round; bytes in all; computing on all devices together, and on the server."
    )
    return _table(caption, columns, rows.index)


def _rounds(results: Results) -> Iterator[Table]:
    found = curves(results.by_round)["mean"].unstack("round").sort_index(axis="columns")
    rows = found.reindex(results.summary.index).rename_axis("method")
    if judged := [number for number in rows.columns if number]:
        caption = f"Mean {results.what} after each round."
        yield Table(caption, rows[judged].map(share), most=_SHOWN_ROUNDS)


def _notes(results: Results) -> list[str]:
    rows, what, runs = results.summary, results.what, results.by_run
    several = bool(rows["spread"].notna().any())
    notes = ["± is the sample standard deviation over the seeds."] * several
    notes.append(f"The {what} is that after the last round, never the best so far.")
    total, audited = rows["runs"].sum(), rows["audited"].sum()
    if audited:
        notes.append(
            "Found: the share of members that the strongest attack of `nectar audit images` finds at a "
            "target of 1 % false positives, with the actual rate in brackets; means over the runs that were "
            f"audited, {audited} of {total}."
        )
    if rows["audited_in_part"].any():
        notes.append(
            "≥: the records do not keep what was sent in every round; more members may be found."
        )
    used = set("".join(runs["flags"]))
    notes += [f"{mark} {meaning}." for mark, meaning in FLAGS.items() if mark in used]
    if not math.isnan(results.target):
        how = "as asked" if results.chosen_target else f"nine tenths of the best row's {what}"
        notes.append(
            f"To {results.target:g}: means over the runs that reach it ({how}), 'k of n' where not all do. Bytes are "
            "those of all sites."
        )
    searched = (note for choice in results.choices for note in _search_notes(choice))
    return [*notes, *_notes_of_seconds(runs[runs["completed"]]), *searched]


def _notes_of_seconds(runs: DataFrame) -> Iterator[str]:
    alone = runs[runs["alone"]]
    if len(alone) < len(runs):
        yield (
            "Seconds (all devices' computing, and the server's without its evaluation) are given for runs during "
            f"which no other run used the machine: {len(alone)} of {len(runs)}. `--alone` repeats the others, one at a "
            "time."
        )
    else:
        yield (
            "Seconds of a run: all devices' computing, and the server's without its evaluation; during none of them "
            "did another run use the machine."
        )
    if len(hardware := sorted(set(alone["hardware"]))) > 1:
        yield f"Seconds come from different machines: {', '.join(hardware)}."


def _search_notes(choice: Choice) -> Iterator[str]:
    tried = ", ".join(f"{' '.join(s)}: {share(choice.score(s))}" for s in choice.trials)
    seeds = len(next(iter(choice.trials.values())))
    over = "on a seed that is" if seeds == 1 else f"as the mean of {seeds} seeds that are"
    yield (
        f"Searched for {', '.join(choice.search.labels)} on the validation set, {over} not above: "
        f"{tried}. Chosen: {' '.join(choice.best)}."
    )
    if choice.edges:
        yield f"{' and '.join(choice.edges)} is at the edge of the grid: a better value may be outside."


# -- rows by cells ------------------------------------------------------------------------------


def pivot(results: Results) -> Table:
    """Return mean and spread of the measure, rows by cells, with a level of columns for each axis of a grid."""
    from pandas import DataFrame, Index, MultiIndex

    runs, columns = results.by_run, [cell.label for cell in results.by_cell]
    rows = Index(runs["variant"].unique(), name="method")

    def over(own: DataFrame, figure: str, combine: Any) -> DataFrame:
        found = own.pivot_table(figure, "variant", "cell", aggfunc=combine)
        return found.reindex(index=rows, columns=columns).astype(object)

    done = runs[runs["completed"]]
    means, spreads = over(done, "final", mean).astype(float), over(done, "final", spread)
    marks = over(runs, "flags", "".join).fillna("")
    marks[[cell.label for cell, own in results.by_cell.items() if isinstance(own, str)]] = "?"
    cells = DataFrame(
        {c: list(map(_with_spread, means[c], spreads[c], marks[c])) for c in columns}, index=rows
    )
    if len(results.axes) > 1:
        heads = [
            [f"{a.name}={value}" for a, value in zip(results.axes, cell.values, strict=True)]
            for cell in results.by_cell
        ]
        cells.columns = MultiIndex.from_tuples(map(tuple, heads))
    several = spreads.notna().to_numpy().any()
    over_seeds = ", mean and sample standard deviation over the seeds" * bool(several)
    caption = f"{capital(results.what)} after the last round{over_seeds}."
    best = means.eq(means.max()) if results.axes else None
    return Table(caption, cells, best, narrow=results.paper is not None)


# -- a paper's numbers --------------------------------------------------------------------------

_CAPTIONS = {
    "accuracy": "Accuracy in percent{network} after the last round, mean and sample standard deviation over the seeds",
    "floats": "Floats that all sites send up, a round",
    "rounds": "Rounds to the accuracy given after the column, mean over the seeds that reach it; after a plus "
    "those in which only images are made, which the paper does not count",
    "epsilon": "Epsilon of all rounds by the sites' ledgers, at the site where it is most, the largest of the seeds'",
}
_SMALL_NOTE = "Ours are small variants, of fewer images, rounds and steps: look for the paper's order, not its numbers."
_REFIT_NOTE = (
    "Reported runs train on all images, as the paper's: no round is their best, and the last one is reported. With "
    "data.validation=0.1 they hold a tenth back, as searches do."
)


def numbers(results: Results, paper: PaperTable) -> DataFrame:
    """Return a line for each number of the paper's and ours."""
    from pandas import DataFrame

    lines = []
    for block in paper.printed:
        for label, own in results.cells.items():
            target = f", {block.targets[label]:g}" if label in block.targets else ""
            for row in own.summary.index:
                number = block.numbers.get(label, {}).get(row, Number(MISSING))
                ours = _ours(own, row, block, label)
                if block.network and ours == number.text == MISSING:  # a row of another network
                    continue
                place = (f"{label}{target}", row, block.figure, block.network)
                lines.append((*place, ours, number.text, number.note, block.source))
    head = ["column", "row", "figure", "network", "ours", "printed", "note", "source"]
    return DataFrame(lines, columns=head, dtype=object)


def _printed(results: Results) -> Iterator[Table]:
    """Yield a table for each figure that the paper prints."""
    assert results.paper is not None
    found = numbers(results, results.paper)
    for (source, figure, network), own in found.groupby(
        ["source", "figure", "network"], sort=False
    ):
        of = f"{', the mean' * (',' in network)} of {network}" if network else ""
        caption = f"{_CAPTIONS[figure].format(network=of)}; printed: {source}."
        yield Table(caption, own.set_index("column")[["row", "ours", "printed"]])


def _notes_of_paper(results: Results, paper: PaperTable) -> list[str]:
    found = numbers(results, paper)
    noted = found[found["note"] != ""].itertuples()
    head = [_SMALL_NOTE] * results.small + [_REFIT_NOTE] * paper.refit
    return [*head, *(f"{line.column}, {line.row}: {line.note}." for line in noted)]


def _ours(results: Results, row: str, block: Printed, label: str) -> str:
    """Write our figure of a row in a column, as a block of printed numbers has it."""
    if block.figure == "accuracy":
        return _percent(results, row, block.network.split(", "))
    if block.figure == "rounds":
        return _rounds_to(results, row, block.targets.get(label, math.nan))
    if block.figure == "floats":
        floats = results.summary.loc[row, "floats_up"]
        return MISSING if math.isnan(floats) else f"{floats:.0f}"
    runs = results.by_run
    most = runs[(runs["variant"] == row) & runs["completed"]]["epsilon"].max(skipna=False)
    return MISSING if math.isnan(most) else f"{most:.3g}"


def _percent(results: Results, row: str, networks: Sequence[str]) -> str:
    """Write the mean accuracy in percent, of a network where one is named.

    Of several networks it is their mean: those of a row's one run, or of the rows whose labels are its label
    followed by a network's name.
    """
    done = results.by_run[results.by_run["completed"]]
    of_each = []
    for network in networks:
        own = f"{row} {network}"
        known = len(networks) > 1 and own in set(done["variant"])
        runs = done[done["variant"] == (own if known else row)]
        figure = f"models.{network}" if network else "final"
        judged = runs.get(figure, [math.nan] * len(runs))
        of_each.append(dict(zip(runs["seed"], judged, strict=True)))
    seeds = [seed for seed in of_each[0] if all(seed in own for own in of_each)]
    finals = [mean([own[seed] for own in of_each]) for seed in seeds]
    if not finals or any(math.isnan(final) for final in finals):
        return MISSING
    deviation = f" ± {100 * spread(finals):.2f}" if len(finals) > 1 else ""
    return f"{100 * mean(finals):.2f}{deviation}"


def _rounds_to(results: Results, row: str, target: float) -> str:
    """Write the mean rounds to an accuracy, and after a plus how many of the rounds until then only made images."""
    if math.isnan(target):
        return MISSING
    runs = results.summary.loc[row, "runs"]
    rounds = results.by_round[(results.by_round["variant"] == row) & results.by_round["completed"]]
    reached = rounds[rounds["measured"] >= target].groupby("seed")["round"].min()
    until = rounds["seed"].map(reached).fillna(math.inf)
    making = rounds["makes_images"].astype(bool) & (rounds["round"] <= until)
    made = making.groupby(rounds["seed"]).sum()
    if runs and reached.empty:
        least, extra, part = f">{rounds['round'].max() - made.max()}", float(made.max()), ""
    else:
        extra = mean(made[reached.index])
        least = count(mean(reached) - extra)
        part = "" if len(reached) == runs else f" ({len(reached)} of {runs})"
    return f"{least}{f' + {count(extra)}' if extra > 0 else ''}{part}"
