"""What the words after ``nectar compare table=NAME`` ask for: a request for each column of the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common.config.keys import near
from common.config.tables import ENDING, TABLE
from common.errors import ConfigError
from nectar.comparison.asked import Asked
from nectar.comparison.paper_table import PaperTable, TableRow, read_paper_table
from nectar.comparison.request import Request, parse
from nectar.comparison.variants import Variant, is_setting
from nectar.words import key_of


@dataclass(frozen=True)
class TableRequest:
    """A paper's table as it was asked for.

    Parameters
    ----------
    small : bool
        Whether its small variants are meant.
    typed : str
        The words that asked for it, as a shell takes them.
    output : Path or None
        Where the files go; None: below the output directory.
    """

    table: PaperTable
    small: bool
    requests: Mapping[str, Request]
    typed: str
    output: Path | None


def asks_for_table(words: Sequence[str]) -> bool:
    """Tell whether the words after ``nectar compare`` name a table."""
    return any(key_of(word) == TABLE for word in words)


def parse_table(asked: Asked) -> TableRequest:
    """Read ``table=NAME [ROW...] [COLUMN...] [LABEL=METHOD...] [key=value...]``.

    Rows and columns that are named stand alone; without a name all stand. A row in the form of a comparison's own
    stands beside the table's.

    Raises
    ------
    ConfigError
        If the table, a row or a column is none; else as :func:`nectar.comparison.request.parse`.
    """
    if asked.grid:
        raise ConfigError(f"--grid is of rows of your own: {TABLE}= has columns of its own.")
    rest = asked.all_words
    tables = [word.partition("=")[2] for word in rest if key_of(word) == TABLE]
    if len(tables) > 1:
        raise ConfigError(f"two tables, {tables[0]} and {tables[1]}: name one.")
    table = read_paper_table(tables[0])
    small, search = asked.small, asked.search
    if small and not table.small:
        raise ConfigError(f"{TABLE}={table.name} has no small variants: leave out --small.")
    rows, columns, others = _sort([word for word in rest if key_of(word) != TABLE], table)
    output = asked.folder
    requests = {}
    for label in columns:
        standing = [row for row in rows if label not in row.left_out]
        tuned = [row for row in standing if row.tune and (search or not (small or row.chosen))]
        cell = table.columns[label] + ENDING * small
        own = replace(
            asked,
            words=(*_row_words(standing, tuned), cell, *others),
            file=None,
            target=_target(table, label) if asked.target is None else asked.target,
            tune=(*_searches(tuned), *asked.tune),
            output=None,
            small=False,
            search=False,
        )
        request = _with_own_rounds(parse(own), standing, others)
        requests[label] = replace(request, output=output / label if output is not None else None)
    return TableRequest(table, small, requests, asked.typed, output)


def _sort(words: Sequence[str], table: PaperTable) -> tuple[list[TableRow], list[str], list[str]]:
    """Tell the table's rows and columns from what all share and from rows of the user's own."""
    by_label = {row.label: row for row in table.rows}
    by_cell = {cell: label for label, cell in table.columns.items()}
    rows: list[TableRow] = []
    columns: list[str] = []
    others: list[str] = []
    for word in words:
        column = word.removesuffix(ENDING)
        if word in by_label:
            rows.append(by_label[word])
        elif column in table.columns or column in by_cell:
            columns.append(column if column in table.columns else by_cell[column])
        elif "=" in word or is_setting(word):
            others.append(word)
        else:
            raise _neither(word, table)
    return rows or list(table.rows), list(dict.fromkeys(columns or table.columns)), others


def _neither(word: str, table: PaperTable) -> ConfigError:
    rows = [row.label for row in table.rows]
    guess = near(word, [*rows, *table.columns, *table.columns.values()])
    listed = (
        "" if guess else f": rows are {', '.join(rows)}; columns are {', '.join(table.columns)}"
    )
    return ConfigError(
        f"{word!r} is neither a row nor a column of {TABLE}={table.name}{guess}{listed}."
    )


def _row_words(rows: Sequence[TableRow], tuned: Sequence[TableRow]) -> list[str]:
    """Return the rows as they would be typed; one that is not tuned has what was chosen for it."""
    words = []
    for row in rows:
        word = row.word
        if row.chosen and row not in tuned:
            word += ("," if ":" in word else ":") + ",".join(row.chosen)
        words.append(word if word == row.label else f"{row.label}={word}")
    return words


def _searches(tuned: Sequence[TableRow]) -> list[str]:
    return [
        f"{row.label}.{key}={','.join(values)}" for row in tuned for key, values in row.tune.items()
    ]


def _target(table: PaperTable, label: str) -> float | None:
    """Return the accuracy up to which the paper counts a column's rounds, if it does."""
    found = (float(block.targets[label]) for block in table.printed if label in block.targets)
    return next(found, None)


def _with_own_rounds(request: Request, rows: Sequence[TableRow], shared: Sequence[str]) -> Request:
    """Give rows of another number of rounds theirs, unless the user asked for a number."""
    if any(key_of(word) == "rounds" for word in shared):
        return request
    rounds = {row.label: row.rounds for row in rows if row.rounds is not None}
    return replace(request, variants=tuple(_lasting(v, rounds) for v in request.variants))


def _lasting(variant: Variant, rounds: Mapping[str, int]) -> Variant:
    if variant.label not in rounds:
        return variant
    return variant.with_settings((f"rounds={rounds[variant.label]}",))
