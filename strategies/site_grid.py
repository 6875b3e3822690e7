"""The grid as a Flower strategy sees it that draws its nodes by itself."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from common.errors import FederationError
from common.sites import Site

#: looks at the nodes that no strategy needs in a round, unless it waits for more of them
_MAX_LOOKS = 5


class SiteGrid(Grid):
    """The grid as a foreign strategy sees it: node ids in site order, and the same draw in every engine.

    Flower's ``sample_nodes`` draws from the global ``random`` right after ``get_node_ids``; reseeding there, and
    not outside, keeps Flower's own threads from drawing in between.
    """

    def __init__(self, grid: Grid, sites: Sequence[Site], seed: int) -> None:
        self._grid = grid
        self._ids = [site.node_id for site in sites]
        self._seed = seed
        self._looks = 0

    def get_node_ids(self) -> list[int]:
        """Return the members' node ids in site order.

        Raises
        ------
        FederationError
            If the strategy looks again and again: it waits for nodes, and within a round there come no others.
        """
        self._looks += 1
        if self._looks > _MAX_LOOKS:
            raise FederationError(
                f"the strategy waits for more nodes than the {len(self._ids)} there are: lower its min_* arguments"
            )
        random.seed(self._seed)
        return list(self._ids)

    def set_run(self, run: Any) -> None:
        """Pass on."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run."""
        return self._grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Pass on."""
        return self._grid.create_message(*args, **kwargs)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Pass on."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pass on."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Pass on."""
        return self._grid.send_and_receive(messages, timeout=timeout)
