"""Tables of text, for a terminal, as Markdown and for LaTeX."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from common.errors import one_line
from nectar.text import aligned

if TYPE_CHECKING:
    from pandas import DataFrame

WIDTH = 120
"""Columns of a terminal."""

#: characters of a row's label that a terminal shows
_LABEL = 60

#: characters in a line of a table on a page of LaTeX's article
_PAGE = 90

#: rows of a table that a page of LaTeX has room for below a caption
_PAGE_ROWS = 45


@dataclass(frozen=True)
class Table:
    """A caption and cells of text.

    Parameters
    ----------
    cells : DataFrame
        The rows by their labels; the index's name heads these. Levels of columns are lines of the head in LaTeX.
    best : DataFrame, optional
        Which cells LaTeX sets in bold.
    most : int
        Number of evenly spaced columns that a terminal and a page show; 0: all.
    narrow : bool
        Whether a page of LaTeX is to have as many columns as it has room for; a wider table is shrunk otherwise.
    """

    caption: str
    cells: DataFrame
    best: DataFrame | None = None
    most: int = 0
    narrow: bool = False

    def text(self) -> str:
        """Return the table for a terminal, in pieces of some of its columns where it is too wide."""
        parts = [aligned(each._rows(_LABEL)) for each in self._shown()._pieces(WIDTH)]
        return "\n\n".join([textwrap.fill(self.caption, WIDTH), *parts])

    def markdown(self) -> str:
        """Return the table as Markdown."""
        head, *rows = self._rows()
        lines = [head, ["---"] * len(head), *rows]
        written = ("| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in lines)
        return "\n".join([self.caption, "", *written])

    def latex(self) -> Iterator[str]:
        """Yield floats for LaTeX, each of rows that a page has room for, shrunk where it is wider than the text."""
        shown = self._shown()
        for piece in shown._pieces(_PAGE) if self.narrow else [shown]:
            for first in range(0, max(1, len(piece.cells)), _PAGE_ROWS):
                yield piece._float(first)

    def _rows(self, longest: int | None = None) -> list[list[str]]:
        """Return the head and the rows; labels of more than ``longest`` characters are cut."""
        heads = [" ".join(one) if isinstance(one, tuple) else str(one) for one in self.cells]
        labels = [str(one) for one in self.cells.index]
        if longest:
            labels = [one if len(one) <= longest else one[: longest - 1] + "…" for one in labels]
        values = self.cells.to_numpy().tolist()
        own = [[label, *row] for label, row in zip(labels, values, strict=True)]
        return [[str(self.cells.index.name), *heads], *own]

    def _shown(self) -> Table:
        count = self.cells.shape[1]
        if not self.most or count <= self.most:
            return self
        places = [number - 1 for number in evenly_spaced(count, self.most)]
        return replace(self, cells=self.cells.iloc[:, places])

    def _pieces(self, width: int) -> Iterator[Table]:
        """Yield the table as several of some of its columns, each at most so many characters wide."""
        columns = list(zip(*self._rows(_LABEL), strict=True))
        label, *widths = [max(map(len, column)) + 2 for column in columns]
        first, taken = 0, label - 2
        for place, wide in enumerate(widths):
            if taken + wide > width and place > first:
                yield replace(self, cells=self.cells.iloc[:, first:place])
                first, taken = place, label - 2
            taken += wide
        yield replace(self, cells=self.cells.iloc[:, first:])

    def _float(self, first: int) -> str:
        cells = self.cells.map(latex_text)
        if self.best is not None:
            cells = cells.mask(self.best.to_numpy(), r"\textbf{" + cells + "}")
        cells = cells.iloc[first : first + _PAGE_ROWS].set_axis(
            cells.index[first : first + _PAGE_ROWS].map(latex_text)
        )
        cells = cells.rename_axis(latex_text(str(cells.index.name))).reset_index(col_level=-1)
        for level in range(cells.columns.nlevels):
            cells = cells.rename(columns=latex_text, level=level)
        tabular = cells.style.hide(axis="index").to_latex(
            hrules=True, column_format="l" + "r" * (cells.shape[1] - 1), multicol_align="c"
        )
        caption = f"{latex_text(self.caption)}{' (Continued.)' if first else ''}"
        return "\n".join(
            [
                r"\begin{table}[htbp]",
                r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
                rf"\caption{{{caption}}}",
                r"\medskip",
                r"\sbox0{%",
                tabular.rstrip(),
                r"}\ifdim\wd0>\linewidth\resizebox{\linewidth}{!}{\usebox0}\else\usebox0\fi",
                r"\end{table}",
            ]
        )


def evenly_spaced(last: int, most: int) -> list[int]:
    """Return the numbers from 1 to ``last``, or ``most`` of them, evenly spaced, including the first and last."""
    if last <= most:
        return list(range(1, last + 1))
    return sorted({1 + round(i * (last - 1) / (most - 1)) for i in range(most)})


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
    """Return plain text with every character escaped that LaTeX would interpret."""
    return one_line(str(plain)).translate(_LATEX)
