"""Tables of text for a terminal, as Markdown and for LaTeX; accuracies, bytes and seconds as they are written there.

`Results` is what has such tables: see :mod:`nectar.comparison.results`.
"""

from __future__ import annotations

import textwrap
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from common.errors import one_line

WIDTH = 120
"""Columns of a terminal."""

PAGE = 90
"""Characters that a page of LaTeX's article has room for beside each other, in the size of its tables."""

#: what a row's label gets at least, where the columns fill the width
_LABEL = 28

#: rows of a table that a page of LaTeX has room for below a caption
_PAGE_ROWS = 45


@dataclass(frozen=True)
class TextTable:
    """A header and its rows, as text.

    Parameters
    ----------
    above : sequence of sequence of (str, int)
        In LaTeX, lines above the header: names, each with how many columns after the first it covers.
    bold : collection of (int, int)
        In LaTeX, rows and columns, from 0, whose cells are set in bold.
    """

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    above: Sequence[Sequence[tuple[str, int]]] = ()
    bold: Collection[tuple[int, int]] = ()


@dataclass(frozen=True, repr=False, eq=False)
class Results(ABC):
    """What was compared; shown in a terminal or a notebook, it is its tables.

    Parameters
    ----------
    command : str
        The words that ask for it again.
    directory : Path
        Where its files are.
    """

    title: str
    command: str
    directory: Path

    def __repr__(self) -> str:
        return self.table

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.table)}</pre>"

    @property
    @abstractmethod
    def failures(self) -> tuple[str, ...]:
        """A sentence for each run, and each cell of a grid, that failed."""

    @abstractmethod
    def tables(self, *, full: bool = False) -> list[TextTable]:
        """Return the tables: as fit a terminal, or in full."""

    def latex_tables(self) -> list[TextTable]:
        """Return the tables for LaTeX."""
        return self.tables()

    @abstractmethod
    def notes(self) -> list[str]:
        """Describe what the figures are and what their marks mean."""

    def all_notes(self) -> list[str]:
        """Return the notes, and what failed."""
        return [*self.notes(), *(f"Failed: {failure}." for failure in self.failures)]

    @property
    def parts(self) -> Mapping[str, Results]:
        """What it is made of, by label."""
        return {}

    @property
    def table(self) -> str:
        """The tables as text of 120 columns."""
        parts = [
            "\n".join([*textwrap.wrap(table.caption, WIDTH), "", *_aligned(table)])
            for table in self.tables()
        ]
        notes = textwrap.TextWrapper(
            WIDTH, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
        )
        return "\n\n".join([*parts, "\n".join(map(notes.fill, self.all_notes()))])

    def markdown(self) -> str:
        """Return the tables as Markdown, after the command that makes them."""
        parts = [f"# {self.title}", f"```\n{self.command}\n```"]
        for table in self.tables(full=True):
            rows = [table.header, ("---",) * len(table.header), *table.rows]
            lines = ["| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in rows]
            parts += [table.caption, "\n".join(lines)]
        places = [f"{label}: {part.directory}" for label, part in self.parts.items()]
        parts.append("\n".join(f"- {note}" for note in [*self.all_notes(), *places]))
        return "\n\n".join(parts) + "\n"

    def latex(self) -> str:
        r"""Return the tables as ``table`` environments, to be read by ``\input``; notes are in comments."""
        comments = [self.command, r"\usepackage{booktabs,graphicx}"]
        lines = [f"% {one_line(each)}" for each in comments]
        for table in self.latex_tables():
            for first in range(0, max(1, len(table.rows)), _PAGE_ROWS):
                lines += ["", *_float(table, first)]
        notes = [f"% {one_line(each)}" for each in self.all_notes()]
        return "\n".join([*lines, "", *notes]).rstrip() + "\n"


def pieces(table: TextTable, width: int) -> list[TextTable]:
    """Return the table as several of some of its columns, each with the first and at most so many characters wide."""
    found: list[TextTable] = []
    first, end = 1, len(table.header)
    while first < end:
        last = end
        while last > first + 1 and _width(_columns(table, first, last)) > width:
            last -= 1
        found.append(_columns(table, first, last))
        first = last
    return found


def _columns(table: TextTable, first: int, end: int) -> TextTable:
    rows = tuple((row[0], *row[first:end]) for row in table.rows)
    return replace(table, header=(table.header[0], *table.header[first:end]), rows=rows)


def _width(table: TextTable) -> int:
    columns = zip(table.header, *table.rows, strict=True)
    return sum(max(map(len, column)) + 2 for column in columns) - 2


# -- text ---------------------------------------------------------------------------------------


def _aligned(table: TextTable) -> list[str]:
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


_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "–": "--",
        "≥": r"$\geq$",
        "<": "$<$",
        ">": "$>$",
        "|": r"\textbar{}",
        "×": r"$\times$",
        "−": "$-$",
        "[": "{[}",  # at the beginning of a row it would be an option of the row before
        "*": "{*}",
        **{c: f"\\{c}" for c in "&%$#_{}"},
    }
)


def latex_text(plain: str) -> str:
    """Return plain text so that LaTeX sets it as it is."""
    return one_line(plain).translate(_LATEX)


def _float(table: TextTable, first: int) -> Iterator[str]:
    """Yield a float of the rows from ``first`` on that a page has room for, shrunk where it is wider than the text."""
    yield r"\begin{table}[htbp]"
    yield r"\centering\footnotesize\setlength{\tabcolsep}{3pt}"
    yield rf"\caption{{{latex_text(table.caption)}{' (Continued.)' if first else ''}}}"
    yield r"\medskip"
    yield r"\sbox0{%"
    yield from _tabular(table, first)
    yield r"}\ifdim\wd0>\linewidth\resizebox{\linewidth}{!}{\usebox0}\else\usebox0\fi"
    yield r"\end{table}"


def _tabular(table: TextTable, first: int) -> Iterator[str]:
    yield rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}"
    yield r"\toprule"
    for line in table.above:
        yield from _head(line)
    yield _row(map(latex_text, table.header))
    yield r"\midrule"
    for i, row in enumerate(table.rows[first : first + _PAGE_ROWS], first):
        cells = enumerate(map(latex_text, row))
        yield _row(rf"\textbf{{{cell}}}" if (i, j) in table.bold else cell for j, cell in cells)
    yield r"\bottomrule"
    yield r"\end{tabular}"


def _head(line: Sequence[tuple[str, int]]) -> Iterator[str]:
    """Yield a line of names over several columns, and the rules below them."""
    yield _row(
        ["", *(rf"\multicolumn{{{span}}}{{c}}{{{latex_text(name)}}}" for name, span in line)]
    )
    rules, first = [], 2
    for _, span in line:
        rules.append(rf"\cmidrule(lr){{{first}-{first + span - 1}}}")
        first += span
    yield " ".join(rules)


def _row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"
