"""A federation of one real site that keeps its memory, whose server may name any run's record and any round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from client_app.app import app as client_app
from common.config.loading import load
from nectar.engines.local_grid import LocalGrid
from server_app.app import serve
from server_app.record import Record

SITE = {"simulated": False, "site": "north"}
PARTITION = {"partition-id": 0, "num-partitions": 1}


class NamedSite(LocalGrid):
    """One site, in a run of Flower's with number ``number``; ``said`` stands over what the server says to it."""

    def __init__(
        self, *args: Any, number: int, node: dict[str, Any], said: dict[str, Any], **kwargs: Any
    ) -> None:
        own = SITE | ({} if "data" in node else PARTITION) | node
        super().__init__(client_app, [own], *args, **kwargs)
        self._number, self._said = number, said
        self.replies: list[Message] = []

    def _work(self, message: Message, node_id: int) -> Message:
        if message.metadata.message_type == "train":
            message.content["config"] = ConfigRecord(
                {**message.content.config_records["config"], **self._said}
            )
        context = Context(
            run_id=self._number,
            node_id=node_id,
            node_config=self.node_config(node_id),
            state=RecordDict(),
            run_config=dict(self._run_config),
        )
        reply: Message = client_app(message, context)
        if message.metadata.message_type == "train":
            self.replies.append(reply)
        return reply


def served(
    config: dict[str, Any], number: int = 1, node: dict[str, Any] | None = None, **said: Any
) -> tuple[Record, list[Message]]:
    """Run ``config`` at one site and return the record, and what the site replied to its instructions."""
    grid = NamedSite(config, number=number, node=node or {}, said=said)
    record = serve(grid, load(config))
    return record, grid.replies


def arrays(replies: list[Message]) -> list[np.ndarray[Any, Any]]:
    """Return all arrays that left, in their order."""
    records = (reply.content["arrays"] for reply in replies)
    return [a.numpy() for r in records if isinstance(r, ArrayRecord) for a in r.values()]


def equal(one: list[Message], other: list[Message]) -> bool:
    """Return whether both are the same arrays, to the bit."""
    pairs = zip(arrays(one), arrays(other), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def versions(state: Path) -> dict[Path, bytes]:
    """Return all versions below a state directory."""
    return {path: path.read_bytes() for path in state.rglob("0*.safetensors")}
