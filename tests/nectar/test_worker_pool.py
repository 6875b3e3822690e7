"""Which worker gets which message, and what comes of it where one dies: workers that this process plays."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from waiting import until

from nectar.engines.local_grid import LocalGrid, identify
from nectar.engines.pool import pool as pools
from nectar.engines.pool.pool import WorkerError, WorkerPool


class Player:
    """A worker that answers when it is told to, with what it is told."""

    def __init__(self, setup: Any, number: int) -> None:
        self.begun: SimpleQueue[Message] = SimpleQueue()
        self.answers: SimpleQueue[RecordDict | Error | Exception] = SimpleQueue()
        self.ended = False
        STAGE.players.append(self)

    def greet(self) -> None:
        """Be there, or not."""
        if STAGE.absent:
            raise WorkerError("it has no memory")

    def carry_out(self, message: Message) -> RecordDict | Error:
        """Say that it has begun, and wait for the answer."""
        self.begun.put(message)
        answer = self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def end(self) -> None:
        """Let nobody wait for it."""
        self.ended = True
        self.answers.put(WorkerError("it was ended"))


class Stage:
    """The players so far, and whether new ones fail to come."""

    players: list[Player]
    absent: bool


STAGE = Stage()


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerPool]:
    STAGE.players, STAGE.absent = [], False
    LocalGrid(ClientApp(), 1)  # gives messages a sender
    monkeypatch.setattr(pools, "Worker", Player)
    made = WorkerPool(None, 2)  # type: ignore[arg-type]
    made.wait()
    assert [start.result() for start in made._started] == [True, True]
    yield made
    made.close()
    assert all(player.ended for player in STAGE.players)


def put(pool: WorkerPool, *nodes: int) -> list[Message]:
    messages = [Message(RecordDict(), node, "train") for node in nodes]
    for message in messages:
        identify(message)
    pool.put(messages)
    return messages


def reply(pool: WorkerPool, message: Message) -> Message:
    found = pool.take(message.metadata.message_id)
    assert found is not None
    return found


def content(size: int = 0) -> RecordDict:
    return RecordDict({"arrays": ArrayRecord([np.zeros(size, np.uint8)])})


def nodes_begun(*players: Player) -> list[int]:
    return [player.begun.get(timeout=60).metadata.dst_node_id for player in players]


def test_a_node_goes_to_the_worker_that_had_it_and_to_the_other_where_that_has_no_time(
    pool: WorkerPool,
) -> None:
    one, other = STAGE.players
    put(pool, 1, 2)
    (first,), (second,) = nodes_begun(one), nodes_begun(other)
    assert {first, second} == {1, 2}
    one.answers.put(content())
    other.answers.put(content())
    until(lambda: not pool._busy)
    messages = put(pool, second, first)
    assert (nodes_begun(one), nodes_begun(other)) == ([first], [second])
    one.answers.put(content())
    reply(pool, messages[1])
    other.answers.put(content())
    reply(pool, messages[0])
    put(pool, first, 77, 78, second)
    assert (nodes_begun(one), nodes_begun(other)) == ([first], [second])
    one.answers.put(content())
    assert nodes_begun(one) == [77]
    one.answers.put(content())
    assert nodes_begun(one) == [78]


def test_workers_run_no_further_ahead_than_what_they_send_fits(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first device takes long: the other worker goes on until its replies fill the room, and then waits."""
    monkeypatch.setattr(pools, "_HELD", 1000)
    messages = put(pool, *range(10))
    begun = dict(zip(nodes_begun(*STAGE.players), STAGE.players, strict=True))
    slow, quick = begun[0], begun[1]
    for node in (2, 3):
        quick.answers.put(content(300))
        assert nodes_begun(quick) == [node]
    quick.answers.put(content(300))
    until(lambda: pool._held == 3 * 428)  # with NumPy's headers
    assert quick.begun.empty()
    slow.answers.put(content(300))
    reply(pool, messages[0])
    until(lambda: len(pool._waiting) == 5)  # one more is taken, and one more begun
    reply(pool, messages[1])
    until(lambda: len(pool._waiting) == 4)  # there is room again
    assert sorted(nodes_begun(slow, quick)) == [4, 5]


def test_a_worker_that_dies_costs_one_message_and_is_followed_by_another(pool: WorkerPool) -> None:
    one = STAGE.players[0]
    messages = put(pool, 1, 2, 3)
    lost = nodes_begun(*STAGE.players)[0]  # both are at work: only the third is left for a new one
    one.answers.put(WorkerError("it fell"))
    error = reply(pool, messages[lost - 1]).error
    assert (error.code, error.reason) == (8, "its process died: it fell")
    until(lambda: len(STAGE.players) == 3)
    assert one.ended
    assert nodes_begun(STAGE.players[2]) == [3]


def test_where_nobody_comes_in_their_place_all_are_answered_for(pool: WorkerPool) -> None:
    STAGE.absent = True
    messages = put(pool, *range(5))
    for player in STAGE.players[:2]:
        nodes_begun(player)
        player.answers.put(WorkerError("it fell"))
    reasons = {reply(pool, message).error.reason for message in messages}
    assert reasons == {"its process died: it fell", "it has no memory"}
    assert (pool.problem, pool.ready) == ("it has no memory", False)
    (late,) = put(pool, 9)
    assert reply(pool, late).error.reason == "it has no memory"


def test_what_nobody_has_begun_is_dropped_and_a_device_at_work_is_not_asked_twice(
    pool: WorkerPool,
) -> None:
    first = put(pool, 1, 2, 3)
    one, other = STAGE.players
    at_work = nodes_begun(one, other)
    second = put(pool, 1, 4)
    assert pool.take(first[2].metadata.message_id) is None
    assert reply(pool, second[0]).error.code == 5
    one.answers.put(content())  # late, and nobody waits for it
    assert nodes_begun(one) == [4]
    one.answers.put(content())
    assert reply(pool, second[1]).has_content()
    assert pool.take(first[0].metadata.message_id) is None
    assert sorted(at_work) == [1, 2]
