"""A real site in this process: what it answers to a server's messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from client_app.app import app as client_app
from common.config.loading import load
from common.division import Division
from common.privacy.ledger import LEDGER_TIP, LEDGER_TIPS, LedgerTip, tip_to_text, tips_to_text
from common.wire.weights import Weights
from nectar.engines.local_grid import LocalGrid

PARTITION = {"partition-id": 0, "num-partitions": 1}
RECORD = "20260101-000000-real-images-seed0-abcdef"


class Site:
    """A site that is no simulation; ``node_config`` is its owner's, and without ``data`` in it there is a partition."""

    def __init__(self, run_config: dict[str, Any], **node_config: Any) -> None:
        node = {"simulated": False, **(PARTITION if "data" not in node_config else {})}
        self._run_config = run_config
        self._grid = LocalGrid(client_app, [node | node_config], run_config)
        (self._node,) = self._grid.get_node_ids()

    def roll_call(self, heads: Mapping[str, LedgerTip] | None = None, **asked: bool) -> Message:
        seen = {} if heads is None else {LEDGER_TIPS: tips_to_text(heads)}
        config = ConfigRecord({"class-counts": False, **seen, **asked})
        return self._ask("query.roll_call", RecordDict({"config": config}))

    def train(
        self, phase: str, record: str = RECORD, head: LedgerTip | None = None, **fields: Any
    ) -> Message:
        seen = {} if head is None else {LEDGER_TIP: tip_to_text(head)}
        return self._sent("train", {"record": record, "phase": phase, **seen, **fields})

    def evaluate(self) -> Message:
        return self._sent("evaluate", {"record": RECORD})

    def _sent(self, kind: str, fields: dict[str, Any]) -> Message:
        weights = Weights.of(Division(load(self._run_config)).run.build_model())
        config = ConfigRecord({"server-round": 1, **fields})
        arrays = ArrayRecord(weights.encode())
        return self._ask(kind, RecordDict({"arrays": arrays, "config": config}))

    def refusal(self) -> str:
        """Return what the roll call is refused with."""
        reply = self.roll_call()
        assert reply.has_error(), "the site takes part"
        return str(reply.error.reason)

    def _ask(self, kind: str, content: RecordDict) -> Message:
        ids = self._grid.push_messages([Message(content, self._node, kind, group_id="1")])
        (reply,) = self._grid.pull_messages(ids)
        return reply
