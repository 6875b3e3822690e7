"""The in-process engine: a Flower Grid that calls the ClientApp directly. Same apps, same messages, no processes.

One of the two modules that touch Flower's private parts: outside a Flower runtime, a Message needs a task's identity.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import getLogger
from typing import Any

import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

logger = getLogger("flwr")

_FIRST_NODE = 1000

UserConfig = Mapping[str, str | int | float | bool]


class LocalGrid(Grid):
    """A federation of simulated nodes in this process.

    A message is carried out when it is pushed, one after the other; its reply waits to be pulled. Contents are
    copied on the way, as a wire would, so that neither side sees what the other does to its records.

    Parameters
    ----------
    client_app : ClientApp
        The app to call.
    clients : int or sequence of mappings
        The number of nodes, of which node i holds partition i; or each node's own config, such as one that names
        the site and the folder of its images.
    run_config : mapping, optional
        What the app finds in ``context.run_config``.
    node_config : mapping, optional
        Added to every node's config.
    progress : callable, optional
        Told (messages carried out, messages pushed together) after each one.
    """

    def __init__(
        self,
        client_app: ClientApp,
        clients: int | Sequence[UserConfig],
        run_config: UserConfig | None = None,
        node_config: UserConfig | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self._app = client_app
        self._progress = progress
        self._replies: dict[str, Message] = {}
        nodes: Sequence[UserConfig]
        if isinstance(clients, int):
            nodes = [{"partition-id": i, "num-partitions": clients} for i in range(clients)]
        else:
            nodes = clients
        self._contexts = {
            _FIRST_NODE + i: Context(
                run_id=1,
                node_id=_FIRST_NODE + i,
                node_config={"simulated": True, **node, **(node_config or {})},
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for i, node in enumerate(nodes)
        }

    def set_run(self, run: Any) -> None:
        """There is only this run."""

    @property
    def run(self) -> Any:
        """There is no record of a run in a SuperLink."""
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
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Carry out ``messages`` and keep their replies; return their ids."""
        ids: list[str] = []
        messages = list(messages)
        for message in messages:
            identify(message)
            self._replies[message.metadata.message_id] = self._call(message)
            ids.append(message.metadata.message_id)
            if self._progress is not None:
                self._progress(len(ids), len(messages))
        return ids

    def _call(self, message: Message) -> Message:
        carried = copy.deepcopy(message)
        threads = torch.get_num_threads()  # the server's own; the device sets its
        try:
            return self._app(carried, self._contexts[message.metadata.dst_node_id])
        except Exception as error:
            logger.exception("the ClientApp raised")
            reason = f"{type(error)}:<'{error}'>"
            return Message(Error(code=2, reason=reason), reply_to=carried)
        finally:
            torch.set_num_threads(threads)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies to ``message_ids`` that are there, once each."""
        return [self._replies.pop(i) for i in list(message_ids) if i in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Push, then pull; nothing is ever waited for."""
        return self.pull_messages(self.push_messages(messages))


def identify(message: Message) -> None:
    """Give ``message`` an id, as a SuperLink does."""
    message.metadata.__dict__["_message_id"] = uuid.uuid4().hex
