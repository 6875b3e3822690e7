"""Tables for LaTeX, by the package booktabs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from common.errors import one_line
from nectar.comparison.tables import Table

Heads = Sequence[Sequence[tuple[str, int]]]
"""Lines above a table's header: names, each with how many columns after the first it covers."""

_MEANT = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "–": "--",
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


def latex_of(
    command: str,
    tables: Sequence[Table],
    notes: Sequence[str],
    *,
    above: Heads = (),
    bold: Collection[tuple[int, int]] = (),
) -> str:
    r"""Return tables as ``tabular`` environments, to be read by ``\input``; all else stands in comments.

    Parameters
    ----------
    above : sequence of sequence of (str, int)
        Lines above each header.
    bold : collection of (int, int)
        Rows and columns, from 0, whose cells are set in bold.
    """
    comments = [command, r"\usepackage{booktabs}"]
    lines = [_comment(each) for each in comments]
    for table in tables:
        lines += ["", _comment(table.caption), *_tabular(table, above, bold)]
    return "\n".join([*lines, "", *map(_comment, notes)]).rstrip() + "\n"


def text(plain: str) -> str:
    """Return plain text so that LaTeX sets it as it is."""
    return one_line(plain).translate(_MEANT)


def _comment(plain: str) -> str:
    return f"% {one_line(plain)}"


def _tabular(table: Table, above: Heads, bold: Collection[tuple[int, int]]) -> Iterator[str]:
    yield rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}"
    yield r"\toprule"
    for line in above:
        yield from _head(line)
    yield _row(map(text, table.header))
    yield r"\midrule"
    for i, row in enumerate(table.rows):
        cells = enumerate(map(text, row))
        yield _row(rf"\textbf{{{cell}}}" if (i, j) in bold else cell for j, cell in cells)
    yield r"\bottomrule"
    yield r"\end{tabular}"


def _head(line: Sequence[tuple[str, int]]) -> Iterator[str]:
    """Yield a line of names over several columns, and the rules below them."""
    yield _row(["", *(rf"\multicolumn{{{span}}}{{c}}{{{text(name)}}}" for name, span in line)])
    rules, first = [], 2
    for _, span in line:
        rules.append(rf"\cmidrule(lr){{{first}-{first + span - 1}}}")
        first += span
    yield " ".join(rules)


def _row(cells: Collection[str] | Iterator[str]) -> str:
    return " & ".join(cells) + r" \\"
