"""`nectar tables`: the papers' tables, and the experiments in each."""

from __future__ import annotations

import textwrap
from typing import Annotated

from common.config.layers import names
from common.config.tables import ENDING, TABLE, experiments, read_table
from common.errors import ConfigError
from nectar.arguments import argument
from nectar.comparison.paper_table import title
from nectar.comparison.papers import paper_items

HELP = f"""\
Lists the papers' tables and the experiments in each, and then for every figure and table of the papers the command
that makes it, or why there is none. With words, those in whose name, title or experiments each of
the words is, and those figures. `nectar compare {TABLE}=NAME` makes one, `nectar run EXPERIMENT` runs a cell of it.

\b
nectar tables cifar10
nectar tables feddm small
"""

_CELLS = textwrap.TextWrapper(
    80, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False
)


def main(
    words: Annotated[
        list[str] | None, argument("[FILTER]...", "what a table's lines must hold, each of them")
    ] = None,
) -> int:
    """Print the tables that are asked for."""
    found = "\n\n".join(filter(None, (listing(*(words or [])), items(*(words or [])))))
    if not found:
        raise ConfigError(
            f"no table has {' and '.join(map(repr, words or []))} in its name, title or experiments: `nectar tables` "
            "lists all."
        )
    print(found)
    return 0


def listing(*filters: str) -> str:
    """Return the tables, and below each its experiments, as lines."""
    lines = []
    small = experiments()
    for name in names(TABLE):
        table = read_table(name)
        cells = [*(column.cell for column in table.columns), *table.others]
        mark = f" [{ENDING}]" if any(small[cell] for cell in cells) else ""
        head, body = f"  {name}{mark}: {title(TABLE, name)}", ", ".join(cells)
        if all(word.casefold() in f"{head} {body}".casefold() for word in filters):
            lines += [head, *_CELLS.wrap(body)]
    return "\n".join(lines)


def items(*filters: str) -> str:
    """Return the papers' figures and tables, a line each."""
    lines = (f"  {one.line}" for one in paper_items())
    return "\n".join(
        line for line in lines if all(word.casefold() in line.casefold() for word in filters)
    )
