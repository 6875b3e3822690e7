"""What can be compared: methods, the papers' tables with their experiments, and what makes each of their figures."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable, Iterator

from common.config.layers import names
from common.config.tables import ENDING, TABLE, experiments, read_table
from common.errors import ConfigError
from common.methods import METHODS, settings_class
from nectar.comparison.paper_table import title
from nectar.comparison.papers import paper_items
from nectar.text import aligned

_METHODS = ("method", "a site sends", "images", "tables", "series", "text", "what it is")
_KINDS = ("images", "table", "series", "text")
_CELLS = textwrap.TextWrapper(
    80, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False
)


def listing(words: Iterable[str]) -> str:
    """Return what has each of the words in its lines: methods, tables, and the papers' figures and tables.

    Raises
    ------
    ConfigError
        If nothing has them.
    """
    words = [word.casefold() for word in words]

    def holds(text: str) -> bool:
        return all(word in text.casefold() for word in words)

    rows = [row for row in map(_method, METHODS) if holds(" ".join(row))]
    methods = aligned([_METHODS, *rows], right=False) if rows else ""
    items = (f"  {item.line}" for item in paper_items())
    blocks = (methods, "\n".join(filter(holds, tables())), "\n".join(filter(holds, items)))
    if not any(blocks):
        raise ConfigError(
            f"no method, table or figure has {' and '.join(map(repr, words))} in its lines: `nectar compare --list` "
            "lists all."
        )
    return "\n\n".join(filter(None, blocks))


def tables() -> Iterator[str]:
    """Yield each table with its experiments below it."""
    small = experiments()
    for name in names(TABLE):
        table = read_table(name)
        cells = [*(column.cell for column in table.columns), *table.others]
        mark = f" [{ENDING}]" if any(small[cell] for cell in cells) else ""
        body = "\n".join(_CELLS.wrap(", ".join(cells)))
        yield f"  {name}{mark}: {title(TABLE, name)}\n{body}"


def _method(name: str) -> tuple[str, ...]:
    """Return a method's row: what leaves a site in a round by the default settings, which data it takes, what it is."""
    cls, takes = settings_class(name), METHODS[name].takes
    disclosed = cls().disclosure()
    sent = disclosed.payload if disclosed is not None else "nothing"
    summary = (inspect.getdoc(cls) or "").partition("\n")[0]
    return (name, sent, *("yes" if kind in takes else "-" for kind in _KINDS), summary)
