"""Run a federation in this process, with or without devices that misbehave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from client_app.app import app as client_app
from common.config.loading import load
from common.sites import site_name
from nectar.engines.local_grid import LocalGrid
from nectar.records.outputs import with_recorded
from server_app.app import serve
from server_app.checkpoint import Checkpoint
from server_app.record import Record

SMALL_CLIENTS = 3

Tamper = Callable[[Message, Message], Message]


class PromptGrid(LocalGrid):
    """A federation whose devices work as soon as they are asked, and whose replies are waited for as elsewhere."""

    works_when_asked = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._replies: dict[str, Message] = {}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Carry out ``messages`` and keep their replies."""
        ids = super().push_messages(messages)
        self._replies |= zip(ids, LocalGrid.pull_messages(self, ids), strict=True)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that are there, once each."""
        return [self._replies.pop(i) for i in list(message_ids) if i in self._replies]


class TamperedGrid(LocalGrid):
    """A federation in which ``tamper(instruction, reply)`` stands between some devices and the server."""

    def __init__(
        self, *args: Any, tampers: Mapping[int, Tamper], kind: str = "train", **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._kind = kind
        self._tampers = {
            node: tampers[i] for i, node in enumerate(self.get_node_ids()) if i in tampers
        }

    def _call(self, message: Message) -> Message:
        reply = super()._call(message)
        tamper = self._tampers.get(message.metadata.dst_node_id)
        if tamper is None or message.metadata.message_type != self._kind:
            return reply
        return tamper(message, reply)


class SilentGrid(LocalGrid):
    """A federation in which the devices numbered ``silent`` answer no instruction to train from a round on."""

    def __init__(
        self, *args: Any, silent: Iterable[int], from_round: int = 1, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._from_round = from_round
        nodes = self.get_node_ids()
        self._silent = {nodes[i] for i in silent}

    def _call(self, message: Message) -> Message:
        reply = super()._call(message)
        asked = message.metadata
        if (
            asked.dst_node_id in self._silent
            and asked.message_type == "train"
            and int(asked.group_id) >= self._from_round
        ):
            reply.metadata.__dict__["_reply_to_message_id"] = "withheld"
        return reply

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Withhold the silent devices' replies."""
        replies = super().pull_messages(message_ids)
        return [r for r in replies if r.metadata.reply_to_message_id != "withheld"]


class MissingGrid(LocalGrid):
    """A federation in this process whose sites miss rounds.

    ``absent`` are the (site, round) whose instruction came to nothing, ``lost`` those that the site carried out and
    whose reply never came.
    """

    def __init__(
        self, *args: Any, absent: set[tuple[str, int]], lost: set[tuple[str, int]], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._absent, self._lost = absent, lost

    def _call(self, message: Message) -> Message:
        about = message.metadata
        if about.message_type == "train":
            site = site_name(self.node_config(about.dst_node_id))
            key = (site, int(about.group_id))
            if key in self._lost:
                super()._call(message)
            if key in self._lost | self._absent:
                return Message(Error(code=5, reason="away"), reply_to=message)
        return super()._call(message)


def run(
    run_config: Mapping[str, Any],
    grid: type[LocalGrid] = LocalGrid,
    app: ClientApp = client_app,
    **grid_options: Any,
) -> Record:
    """Run ``run_config`` to its end and return its record."""
    config = load(run_config)
    federation = grid(app, config.federation.sites, run_config, **grid_options)
    return serve(federation, config)


def resumed(record: Record, rounds: int = 0) -> Record:
    """Continue a run, to more rounds if that is said."""
    return run(
        with_recorded({"resume": str(record.directory)} | ({"rounds": rounds} if rounds else {}))
    )


def last(record: Record) -> Checkpoint:
    """Return the newest checkpoint."""
    return Checkpoint.load(record.last)


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Return whether both hold the same tensors, to the bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def same_end(one: Record, other: Record) -> bool:
    """Return whether both runs ended with the same weights, to the bit."""
    return same(last(one).weights, last(other).weights)


def run_unmasked(config: Mapping[str, Any], *args: Any, **kwargs: Any) -> Record:
    """Run a secret sum in which neither sites nor server add a mask: each part adds up as it is."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("client_app.secret", "strategies.secret"):
            patch.setattr(f"{module}.add_mask", lambda *words, **minus: None)
        return run(config, *args, **kwargs)


def losses(record: Record) -> list[float]:
    """Return the test loss of each round."""
    return [line["test"]["loss"] for line in record.metrics()]


def server_context(run_config: Mapping[str, Any]) -> Context:
    """Return a context to call the ServerApp with, where no grid is needed."""
    return Context(
        run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=dict(run_config)
    )


def numbers(record: Record) -> list[dict[str, Any]]:
    """Return the record's rounds without what a clock decides, and without what only some servers know.

    Over which classes a site's accuracy is, one that does not have the sites' data cannot say.
    """

    def own(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {k: own(v) for k, v in value.items() if k != "over"}

    return [{k: own(v) for k, v in line.items() if k != "seconds"} for line in record.metrics()]


def words_of(run_config: Mapping[str, Any]) -> list[str]:
    """Return what a person types for ``run_config``; where its ``set`` gives a key twice, the last holds."""
    own = [f"{key}={value}" for key, value in run_config.items() if key != "set"]
    settings = dict(word.split("=", 1) for word in str(run_config.get("set", "")).split())
    return [*own, *(f"{key}={value}" for key, value in settings.items())]
