"""``conf/papers.yaml``: every numbered figure and table of the papers, and the command that makes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from common.config import layers
from common.config.tables import TABLE
from common.config.text import read_yaml

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
