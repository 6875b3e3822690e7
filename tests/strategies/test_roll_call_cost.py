"""What a roll call over a SuperLink costs the server: one content for all, one look at the nodes' names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from federation import PromptGrid
from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo
from small import Small

from client_app.app import app as client_app
from common.errors import FederationError
from common.privacy.head import Head
from strategies.exchange import roll_call
from strategies.exchange.gathering import wait_for_sites
from strategies.exchange.roll_call import Question

NODES = 40


class Looked(PromptGrid):
    """Keeps what is pushed and counts the looks at the nodes; the nodes in ``silent`` never answer."""

    def __init__(self, *args: Any, silent: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pushed: list[Message] = []
        self.looks = 0
        self._silent = set(self.get_node_ids()[:silent])

    def get_nodes(self) -> Iterator[NodeInfo]:
        self.looks += 1
        return (NodeInfo(node_id=i, name=f"name-{i}") for i in self.get_node_ids())

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        messages = list(messages)
        self.pushed += messages
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [
            reply
            for reply in super().pull_messages(message_ids)
            if reply.metadata.src_node_id not in self._silent
        ]


def federation(small: Small, silent: int = 0) -> Looked:
    config = small(method="fedavg", set=f"federation.sites={NODES} partition.kind=iid")
    return Looked(client_app, NODES, config, silent=silent)


def test_all_are_asked_with_one_content_and_heads_are_written_once(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every node was sent a text of its own over all sites' heads: their number squared."""
    written: list[int] = []

    def write(heads: Any) -> str:
        written.append(len(heads))
        return all_written(heads)

    all_written = roll_call.all_written
    monkeypatch.setattr(roll_call, "all_written", write)
    heads = {f"partition-{i}": Head(1, "a" * 64) for i in range(NODES)}
    grid = federation(small)
    question = Question(0, held_out=False, max_examples=10**6, heads=heads)
    there = wait_for_sites(grid, NODES, question, deadline=600.0, min_replies=1)
    assert len(there.sites) == NODES == len(grid.pushed)
    assert written == [NODES]
    assert len({id(message.content) for message in grid.pushed}) == 1
    assert len({message.metadata.message_id for message in grid.pushed}) == NODES


@pytest.mark.usefixtures("clock")
def test_the_silent_are_named_by_one_look_at_the_nodes(small: Small) -> None:
    """Each silent node cost a look of its own at all nodes."""
    grid = federation(small, silent=30)
    question = Question(0, held_out=False, max_examples=10**6)
    there = wait_for_sites(grid, NODES, question, deadline=0.5, min_replies=1)
    assert len(there.sites) == 10
    assert there.silent[1000] == ("online and busy or not answering: name-1000 (node 1000)")
    assert len(there.silent) == 30
    assert grid.looks == 1


@pytest.mark.usefixtures("clock")
def test_too_few_are_told_as_before(small: Small) -> None:
    grid = federation(small, silent=NODES)
    question = Question(0, held_out=False, max_examples=10**6)
    with pytest.raises(FederationError, match=r"0 of 40 sites were there after 0.3 s"):
        wait_for_sites(grid, NODES, question, deadline=0.3, min_replies=1)


@pytest.mark.usefixtures("clock")
def test_of_many_that_are_there_twenty_are_named(small: Small) -> None:
    grid = federation(small, silent=1)
    question = Question(0, held_out=False, max_examples=10**6)
    with pytest.raises(FederationError) as caught:
        wait_for_sites(grid, NODES, question, deadline=0.3, min_replies=NODES)
    said = str(caught.value)
    assert said.startswith("39 of 40 sites were there after 0.3 s (partition-1, partition-2, ")
    assert "partition-20 and 19 more; online and busy or not answering: name-1000 (node" in said
    assert "partition-21" not in said
