"""The in-process engine: a Flower Grid that calls the ClientApp directly. Same apps, same messages, no processes.

It uses a private module of Flower: outside a Flower runtime, a Message needs a task's identity.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import getLogger
from typing import Any

import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    Metadata,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from common.sites import Site
from common.wire.npy import unchecked_record

logger = getLogger("flwr")

_FIRST_NODE = 1000

Record = ArrayRecord | ConfigRecord | MetricRecord

UserConfig = Mapping[str, str | int | float | bool]


class LocalGrid(Grid):
    """A federation of simulated nodes in this process.

    A message is processed when its reply is pulled, so that no replies pile up. Contents are copied on the way, as a
    wire would, so that neither side sees what the other does to its records.

    Parameters
    ----------
    clients : int or sequence of mappings
        The number of nodes, of which node i holds partition i; or each node's own config, such as one that names
        the site and the folder of its images.
    node_config : mapping, optional
        Added to every node's config.
    progress : callable, optional
        Called with (messages carried out, messages pushed together) after each one.
    one_for_all : bool
        Whether the app may answer the roll call for all ``clients`` partitions at once.
    trains_together : bool
        Whether the app is shown the instructions that wait, each with its node's context, before the first of them is
        carried out, so that it can train sites together (``compute.batched``).
    """

    works_when_asked = True

    def __init__(
        self,
        client_app: ClientApp,
        clients: int | Sequence[UserConfig],
        run_config: UserConfig | None = None,
        node_config: UserConfig | None = None,
        progress: Callable[[int, int], None] | None = None,
        *,
        one_for_all: bool = False,
        trains_together: bool = False,
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self._app = client_app
        self._progress = progress
        self._waiting: dict[str, Message] = {}
        self._carried_out, self._pushed = 0, 0
        self._clients, self._node_config = clients, dict(node_config or {})
        self._run_config = dict(run_config or {})
        self._nodes = range(
            _FIRST_NODE, _FIRST_NODE + (clients if isinstance(clients, int) else len(clients))
        )
        self._kept: dict[int, Context] = {}
        self._one_for_all = one_for_all and not self._node_config
        self.trains_together, self._shown = trains_together, set[str]()

    def set_run(self, run: Any) -> None:
        """Do nothing: there is only one run."""

    @property
    def run(self) -> Any:
        """None, since no SuperLink has a record of the run."""
        return None

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Compose a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Return all node ids."""
        return list(self._nodes)

    def sites_of(self, **asked: bool) -> list[Site]:
        """Return the sites of all nodes for the roll call; empty if each node has to be asked."""
        if not self._one_for_all:
            return []
        answer_for_all: Callable[..., list[Site]] = self._app.sites_of  # type: ignore[attr-defined]
        return answer_for_all(self._context(self._nodes[0]), self._nodes, **asked)

    def node_config(self, node_id: int) -> dict[str, str | int | float | bool]:
        """Return the node's config."""
        index, clients = self._nodes.index(node_id), self._clients
        own: UserConfig = {"partition-id": index, "num-partitions": len(self._nodes)}
        if not isinstance(clients, int):
            own = clients[index]
        return {"simulated": True, **own, **self._node_config}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Queue ``messages``, which are processed when their replies are pulled; return their ids."""
        messages = list(messages)
        self._carried_out, self._pushed = 0, len(messages)
        for message in messages:
            identify(message)
            self._waiting[message.metadata.message_id] = message
        return [message.metadata.message_id for message in messages]

    def _call(self, message: Message) -> Message:
        carried = _copied(message)
        threads = torch.get_num_threads()  # the server's own; the device sets its
        try:
            return self._work(carried, message.metadata.dst_node_id)
        except Exception as error:
            logger.exception("the ClientApp raised")
            return Message(Error(code=2, reason=f"{type(error)}:<'{error}'>"), reply_to=carried)
        finally:
            torch.set_num_threads(threads)

    def _context(self, node_id: int) -> Context:
        return self._kept.get(node_id) or Context(
            run_id=1,
            node_id=node_id,
            node_config=self.node_config(node_id),
            state=RecordDict(),
            run_config=dict(self._run_config),
        )

    def _work(self, message: Message, node_id: int) -> Message:
        """Call the app in the node's context, which is kept if the app has stored something in it."""
        context = self._context(node_id)
        try:
            return self._app(message, context)
        finally:
            if len(context.state):
                self._kept[node_id] = context

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Process the messages of ``message_ids`` that are still queued, and return their replies."""
        asked = [self._waiting.pop(i) for i in list(message_ids) if i in self._waiting]
        return [self._worked(message) for message in asked]

    def _worked(self, message: Message) -> Message:
        if self.trains_together and message.metadata.message_id not in self._shown:
            self._look_ahead([message, *self._waiting.values()])
        reply = self._call(message)
        self._report()
        return reply

    def _look_ahead(self, due: Sequence[Message]) -> None:
        """Show the app the queued instructions, once each."""
        threads = torch.get_num_threads()
        train_stacked_ahead = self._app.train_stacked_ahead  # type: ignore[attr-defined]
        shown = train_stacked_ahead((m, self._context(m.metadata.dst_node_id)) for m in due)
        torch.set_num_threads(threads)
        self._shown = {message.metadata.message_id for message in due[:shown]}

    def _report(self) -> None:
        self._carried_out += 1
        if self._progress is not None:
            self._progress(min(self._carried_out, self._pushed), self._pushed)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Push, then pull, without waiting."""
        return self.pull_messages(self.push_messages(messages))


def identify(message: Message) -> None:
    """Assign an id to ``message``, as a SuperLink does."""
    message.metadata.__dict__["_message_id"] = uuid.uuid4().hex


def _copied(message: Message) -> Message:
    """Return ``message`` as it arrives: copies of its records, and the bytes of arrays, which cannot be written to."""
    records = {name: _record(record) for name, record in message.content.items()}
    new: Message = object.__new__(Message)
    new.__dict__.update(message.__dict__)
    new.__dict__["_metadata"] = metadata = object.__new__(Metadata)
    metadata.__dict__.update(message.metadata.__dict__)
    new.__dict__["_content"] = unchecked_record(RecordDict(), records)
    return new


def _record(record: Record) -> Record:
    new = record.copy()
    held: dict[str, Any] = new.__dict__["_data"]
    for name, value in held.items():
        if isinstance(value, Array):
            held[name] = copy_of(value)
        elif isinstance(value, list):
            held[name] = list(value)
    return new


def copy_of(array: Array) -> Array:
    """Return another Array of the same bytes, which cannot be written to."""
    new = Array.__new__(Array)
    new.__dict__.update(array.__dict__)
    return new
