"""The papers' tables and figures as lines: the experiments and the command of each."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from common.config import layers
from common.config.layers import names
from common.config.tables import ENDING, TABLE, experiments, read_table
from common.config.text import read_yaml
from common.errors import ConfigError
from nectar.comparison.paper_table import title

_CELLS = textwrap.TextWrapper(
    80, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False
)


def listing(*filters: str) -> str:
    """Return the tables with their experiments, then for each figure and table of the papers what makes it.

    Parameters
    ----------
    *filters : str
        Words, each of which a table's lines must hold.

    Raises
    ------
    ConfigError
        If no table has them.
    """
    found = "\n\n".join(filter(None, (tables(*filters), _items(*filters))))
    if not found:
        raise ConfigError(
            f"no table has {' and '.join(map(repr, filters))} in its name, title or experiments: "
            "`nectar compare --list` lists all."
        )
    return found


def tables(*filters: str) -> str:
    """Return the tables, and below each its experiments, as lines."""
    lines = []
    small = experiments()
    for name in names(TABLE):
        table = read_table(name)
        cells = [*(column.cell for column in table.columns), *table.others]
        mark = f" [{ENDING}]" if any(small[cell] for cell in cells) else ""
        head, body = f"  {name}{mark}: {title(TABLE, name)}", ", ".join(cells)
        if _has(f"{head} {body}", filters):
            lines += [head, *_CELLS.wrap(body)]
    return "\n".join(lines)


def _items(*filters: str) -> str:
    """Return the papers' figures and tables, a line each."""
    lines = (f"  {one.line}" for one in paper_items())
    return "\n".join(line for line in lines if _has(line, filters))


def _has(text: str, filters: tuple[str, ...]) -> bool:
    return all(word.casefold() in text.casefold() for word in filters)


# ---- papers --------------------------------------------------------------------------------------
# ``conf/papers.yaml``: every numbered figure and table of the papers, and the command that makes it.

PAPERS = "papers.yaml"


@dataclass(frozen=True)
class PaperItem:
    """A figure or a table of a paper.

    Parameters
    ----------
    item : str
        What the paper calls it, such as ``Figure 2``.
    command : str
        What makes it; empty where there is nothing to run.
    reason : str
        Then, why.
    differs : str
        In what ours departs from the paper, and where it is found.
    """

    paper: str
    item: str
    command: str
    reason: str
    differs: str

    @property
    def line(self) -> str:
        """The item in a line of text."""
        made = self.command or f"none, {self.reason}"
        return f"{self.paper}, {self.item}: {made}" + (f" ({self.differs})" if self.differs else "")


def paper_items() -> Iterator[PaperItem]:
    """Yield the items, each paper's in its order."""
    for paper, items in read_yaml(layers.CONF / PAPERS, f"conf/{PAPERS}").items():
        for item, given in items.items():
            own = f"nectar compare {TABLE}={given[TABLE]}" if TABLE in given else ""
            command = given.get("command", own)
            yield PaperItem(paper, item, command, given.get("none", ""), given.get("differs", ""))
