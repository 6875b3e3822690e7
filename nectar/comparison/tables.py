"""The comparison as tables: for a terminal, and as Markdown."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from nectar.comparison.rows import FLAGS, Row, mean
from nectar.comparison.tuning import Choice

_NOTHING = "–"
WIDTH = 120
"""Columns of a terminal."""

#: what a row's label gets at least, where the columns fill the width
_LABEL = 28

#: rounds that a terminal shows; the Markdown has them all
_SHOWN_ROUNDS = 10


@dataclass(frozen=True)
class Results:
    """What a comparison came to.

    Parameters
    ----------
    command : str
        The words that ask for it again.
    rounds : int
        Rounds of the longest run.
    target : float
        The accuracy up to which rounds and bytes are counted; NaN without a completed run.
    chosen_target : bool
        Whether it was given, not derived.
    failures : tuple of str
        A sentence for each run that failed.
    """

    title: str
    command: str
    rows: tuple[Row, ...]
    rounds: int
    target: float
    chosen_target: bool
    choices: tuple[Choice, ...] = ()
    failures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A header and its rows, as text."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(results: Results, *, every_round: bool) -> list[Table]:
    """Return accuracy, cost and accuracy by round, if any was judged; a few rounds of many, or every one of them."""
    rounds = _by_round(results, every_round)
    return [_accuracy(results), _cost(results), *([rounds] if len(rounds.header) > 1 else [])]


def markdown(results: Results) -> str:
    """Return the comparison as Markdown."""
    shown = tables(results, every_round=True)
    return markdown_of(results.title, results.command, shown, footnotes(results))


def terminal(results: Results) -> str:
    """Return the comparison for a terminal of 120 columns."""
    return terminal_of(tables(results, every_round=False), footnotes(results))


def markdown_of(title: str, command: str, shown: Sequence[Table], notes: Sequence[str]) -> str:
    """Return tables as Markdown, after the command that gives them."""
    parts = [f"# {title}", f"```\n{command}\n```"]
    for table in shown:
        rows = [table.header, ("---",) * len(table.header), *table.rows]
        lines = ["| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in rows]
        parts += [table.caption, "\n".join(lines)]
    parts.append("\n".join(f"- {note}" for note in notes))
    return "\n\n".join(parts) + "\n"


def terminal_of(shown: Sequence[Table], notes: Sequence[str]) -> str:
    """Return tables for a terminal of 120 columns."""
    parts = [
        "\n".join([*textwrap.wrap(table.caption, WIDTH), "", *_aligned(table)]) for table in shown
    ]
    lines = [
        textwrap.fill(
            n, WIDTH, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
        )
        for n in notes
    ]
    return "\n\n".join([*parts, "\n".join(lines)])


def footnotes(results: Results) -> list[str]:
    """Say what the figures are, what their marks mean, and what was searched."""
    rows = results.rows
    used = {mark for row in rows for i in range(len(row.seeds)) for mark in row.flags(i)}
    notes = [
        "± is the sample standard deviation over the seeds; the accuracy is that after the last round, never the best "
        "so far."
    ]
    audited = [run for row in rows for run in row.audited]
    if audited:
        whole = sum(len(row.whole) for row in rows)
        notes.append(
            "Found: the share of members that the strongest attack of `nectar audit images` finds where 1 % of "
            "controls are to be taken for some, and in brackets how many were; means over the runs that were audited, "
            f"{len(audited)} of {whole}."
        )
    if any(run.audited_in_part for run in audited):
        notes.append(
            "≥: the records do not keep what was sent in every round; more members may be found."
        )
    notes += [f"{mark} {meaning}." for mark, meaning in FLAGS.items() if mark in used]
    if not math.isnan(results.target):
        how = "as asked" if results.chosen_target else "nine tenths of the best row's accuracy"
        notes.append(
            f"To {results.target:g}: means over the runs that reach it ({how}), 'k of n' where not all do. Bytes are "
            "those of all sites."
        )
    not_alone = sum(not run.alone for row in rows for run in row.whole)
    if not_alone:
        whole = sum(len(row.whole) for row in rows)
        notes.append(
            f"Seconds (all devices' computing, and the server's without its evaluation) are given of runs beside "
            f"which no other run of nectar went on: {whole - not_alone} of {whole}. `--alone` runs the others again, "
            "one at a time."
        )
    else:
        notes.append(
            "Seconds of a run: all devices' computing, and the server's without its evaluation; no other run of "
            "nectar went on beside any."
        )
    hardware = sorted({run.hardware for row in rows for run in row.whole if run.alone})
    if len(hardware) > 1:
        notes.append(f"Seconds come from different machines: {', '.join(hardware)}.")
    notes += [note for choice in results.choices for note in _search_notes(choice)]
    return [*notes, *(f"Failed: {failure}." for failure in results.failures)]


def _search_notes(choice: Choice) -> list[str]:
    tried = ", ".join(f"{' '.join(t.settings)}: {number(t.score)}" for t in choice.trials)
    seeds = len(choice.trials[0].accuracies)
    over = "on a seed that is" if seeds == 1 else f"as the mean of {seeds} seeds that are"
    notes = [
        f"Searched for {', '.join(choice.search.labels)} on the validation set, {over} not above: "
        f"{tried}. Chosen: {' '.join(choice.best.settings)}."
    ]
    if choice.edges:
        notes.append(
            f"{' and '.join(choice.edges)} lies at the edge of what was tried: a better value may lie outside."
        )
    return notes


def _accuracy(results: Results) -> Table:
    audited = any(row.audited for row in results.rows)
    rows = []
    for row in results.rows:
        each = "  ".join(_seed(row, i) for i in range(len(row.seeds)))
        spread = "" if math.isnan(row.spread) else f" ± {number(row.spread)}"
        found = (_found(row),) if audited else ()
        rows.append((row.label, f"{number(row.mean)}{spread}", *found, each))
    seeds = results.rows[0].seeds
    span = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    return Table(
        f"Accuracy after {_last(results)}, and each seed's.",
        ("method", "accuracy", *(("found (alarms)",) if audited else ()), span),
        tuple(rows),
    )


def _last(results: Results) -> str:
    """Name the last round, which some rows may have for themselves."""
    ends = {run.rounds[-1].round for row in results.rows for run in row.whole}
    return f"round {results.rounds}" if len(ends) < 2 else "the row's last round"


def _found(row: Row) -> str:
    """Return members found and false alarms, in percent, as means over the runs that were audited."""
    if not row.audited:
        return _NOTHING
    found = mean([run.found for run in row.audited])
    alarms = mean([run.false_alarms for run in row.audited])
    least = "≥ " if any(run.audited_in_part for run in row.audited) else ""
    return f"{least}{100 * found:.1f} % ({100 * alarms:.1f})"


def _seed(row: Row, index: int) -> str:
    run = row.runs[index]
    return (_NOTHING if run is None else number(run.final)) + row.flags(index)


def _cost(results: Results) -> Table:
    rows = []
    for row in results.rows:
        spent = row.to_target(results.target)
        part = "" if spent.reached == spent.of else f" ({spent.reached} of {spent.of})"
        rows.append(
            (
                row.label,
                f"{short(spent.rounds)}{part}",
                size(spent.total),
                size(spent.up),
                size(row.per_round(lambda one: one.up)),
                size(row.per_round(lambda one: one.down)),
                size(row.total(lambda one: one.up + one.down)),
                seconds(row.seconds(lambda one: one.device_seconds)),
                seconds(row.seconds(lambda one: one.server_seconds)),
            )
        )
    reach = "target" if math.isnan(results.target) else f"{results.target:g}"
    header = (
        "method",
        f"to {reach}",
        "bytes to it",
        "up to it",
        "up/round",
        "down/round",
        "in all",
        "devices",
        "server",
    )
    caption = (
        f"Cost of a run, mean over the seeds: rounds to accuracy {reach}, bytes and bytes up until then; bytes up and "
        "down a round; bytes in all; computing on all devices together, and on the server."
    )
    return Table(caption, header, tuple(rows))


def _by_round(results: Results, every: bool) -> Table:
    judged = [n for n in range(1, results.rounds + 1) if any(row.curve(n) for row in results.rows)]
    shown = shown_rounds(len(judged), len(judged) if every else _SHOWN_ROUNDS)
    numbers = [judged[position - 1] for position in shown]
    rows = [
        (row.label, *(number(mean([one.accuracy for one in row.curve(n)])) for n in numbers))
        for row in results.rows
    ]
    return Table(
        "Mean accuracy after each round.", ("method", *(str(n) for n in numbers)), tuple(rows)
    )


def shown_rounds(last: int, most: int) -> list[int]:
    """Return the rounds from 1 to ``last``, or ``most`` of them, evenly apart, the first and last included."""
    if last <= most:
        return list(range(1, last + 1))
    return sorted({1 + round(i * (last - 1) / (most - 1)) for i in range(most)})


def _aligned(table: Table) -> list[str]:
    """Set a table in columns; where it is too wide, first columns are cut, then last ones wrapped."""
    rows = [table.header, *table.rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.header))]
    room = WIDTH - sum(widths[1:]) - 2 * (len(widths) - 1)
    widths[0] = min(widths[0], max(_LABEL, room))
    left = sum(widths[:-1]) + 2 * (len(widths) - 1)
    widths[-1] = min(widths[-1], WIDTH - left)
    lines: list[str] = []
    for first, *cells, last in rows:
        label = first if len(first) <= widths[0] else first[: widths[0] - 1] + "…"
        middle = [c.rjust(w) for c, w in zip(cells, widths[1:-1], strict=True)]
        wrapped = textwrap.wrap(last, widths[-1]) or [""]
        lines.append("  ".join([label.ljust(widths[0]), *middle, wrapped[0].rjust(widths[-1])]))
        lines += [" " * left + more.rjust(widths[-1]) for more in wrapped[1:]]
    return lines


def number(value: float) -> str:
    """Write an accuracy."""
    return _NOTHING if math.isnan(value) else f"{value:.4f}"


def short(value: float) -> str:
    """Write a mean count, to one digit after the point where it has one."""
    return _NOTHING if math.isnan(value) else f"{value:.1f}".removesuffix(".0")


def seconds(value: float) -> str:
    """Write seconds, to three digits."""
    return (
        _NOTHING if math.isnan(value) else f"{value:.0f} s" if value >= 99.5 else f"{value:.3g} s"
    )


def size(value: float) -> str:
    """Write bytes, in powers of 1000."""
    if math.isnan(value):
        return _NOTHING
    for unit, amount in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= amount:
            return (
                f"{value / amount:.3g} {unit}"
                if value < 1000 * amount
                else f"{value / amount:.0f} {unit}"
            )
    return f"{value:.0f} B"
