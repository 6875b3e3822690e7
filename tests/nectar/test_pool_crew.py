"""Which worker gets which message, and what comes of it where one dies: workers that this process plays."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from nectar.engines.local_grid import LocalGrid, identify
from nectar.engines.pool import crew as crews
from nectar.engines.pool.crew import Crew
from nectar.engines.pool.hand import Job, WorkerError


class Player:
    """A worker that answers when it is told to, with what it is told."""

    def __init__(self, setup: Any, board: Any) -> None:
        self.begun: SimpleQueue[Job] = SimpleQueue()
        self.answers: SimpleQueue[RecordDict | Error | Exception] = SimpleQueue()
        self.ended = False
        STAGE.players.append(self)

    def greet(self) -> None:
        """Be there, or not."""
        if STAGE.absent:
            raise WorkerError("it has no memory")

    def carry_out(self, job: Job) -> RecordDict | Error:
        """Say that it has begun, and wait for the answer."""
        self.begun.put(job)
        answer = self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def end(self) -> None:
        """Let nobody wait for it."""
        self.ended = True
        self.answers.put(WorkerError("it was ended"))

    def join(self) -> None:
        """Be gone."""


class Stage:
    """The players so far, and whether new ones fail to come."""

    players: list[Player]
    absent: bool


STAGE = Stage()


@pytest.fixture
def crew(monkeypatch: pytest.MonkeyPatch) -> Iterator[Crew]:
    STAGE.players, STAGE.absent = [], False
    LocalGrid(ClientApp(), 1)  # gives messages a sender
    monkeypatch.setattr(crews, "Hand", Player)
    made = Crew({}, 2)
    made.wait()
    until(lambda: made._ready == 2)
    yield made
    made.close()
    assert all(player.ended for player in STAGE.players)


def until(condition: Any) -> None:
    for _ in range(12000):
        if condition():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it did not come to be")


def put(crew: Crew, *nodes: int) -> list[Message]:
    messages = [Message(RecordDict(), node, "train") for node in nodes]
    for message in messages:
        identify(message)
    crew.put(messages)
    return messages


def reply(crew: Crew, message: Message) -> Message:
    found = crew.take(message.metadata.message_id)
    assert found is not None
    return found


def content(size: int = 0) -> RecordDict:
    return RecordDict({"arrays": ArrayRecord([np.zeros(size, np.uint8)])})


def nodes_begun(*players: Player) -> list[int]:
    return [player.begun.get(timeout=60).node for player in players]


def test_a_node_goes_to_the_worker_that_had_it_and_to_the_other_where_that_has_no_time(
    crew: Crew,
) -> None:
    one, other = STAGE.players
    put(crew, 1, 2)
    (first,), (second,) = nodes_begun(one), nodes_begun(other)
    assert {first, second} == {1, 2}
    one.answers.put(content())
    other.answers.put(content())
    until(lambda: not crew._busy)
    messages = put(crew, second, first)
    assert (nodes_begun(one), nodes_begun(other)) == ([first], [second])
    one.answers.put(content())
    reply(crew, messages[1])
    other.answers.put(content())
    reply(crew, messages[0])
    put(crew, first, 77, 78, second)
    assert (nodes_begun(one), nodes_begun(other)) == ([first], [second])
    one.answers.put(content())
    assert nodes_begun(one) == [77]
    one.answers.put(content())
    assert nodes_begun(one) == [78]


def test_workers_run_no_further_ahead_than_what_they_send_fits(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first device takes long: the other worker goes on until its replies fill the room, and then waits."""
    monkeypatch.setattr(crews, "_HELD", 1000)
    messages = put(crew, *range(10))
    begun = dict(zip(nodes_begun(*STAGE.players), STAGE.players, strict=True))
    slow, quick = begun[0], begun[1]
    for node in (2, 3):
        quick.answers.put(content(300))
        assert nodes_begun(quick) == [node]
    quick.answers.put(content(300))
    until(lambda: crew._held == 3 * 428)  # with NumPy's headers
    assert quick.begun.empty()
    slow.answers.put(content(300))
    reply(crew, messages[0])
    until(lambda: len(crew._waiting) == 5)  # one more is taken, and one more begun
    reply(crew, messages[1])
    until(lambda: len(crew._waiting) == 4)  # there is room again
    assert sorted(nodes_begun(slow, quick)) == [4, 5]


def test_a_worker_that_dies_costs_one_message_and_is_followed_by_another(crew: Crew) -> None:
    one = STAGE.players[0]
    messages = put(crew, 1, 2, 3)
    lost = nodes_begun(*STAGE.players)[0]  # both are at work: only the third is left for a new one
    one.answers.put(WorkerError("it fell"))
    error = reply(crew, messages[lost - 1]).error
    assert (error.code, error.reason) == (8, "its process died: it fell")
    until(lambda: len(STAGE.players) == 3)
    assert one.ended
    assert nodes_begun(STAGE.players[2]) == [3]


def test_where_nobody_comes_in_their_place_all_are_answered_for(crew: Crew) -> None:
    STAGE.absent = True
    messages = put(crew, *range(5))
    for player in STAGE.players[:2]:
        nodes_begun(player)
        player.answers.put(WorkerError("it fell"))
    reasons = {reply(crew, message).error.reason for message in messages}
    assert reasons == {"its process died: it fell", "it has no memory"}
    assert (crew.problem, crew.ready) == ("it has no memory", False)
    (late,) = put(crew, 9)
    assert reply(crew, late).error.reason == "it has no memory"


def test_what_nobody_has_begun_is_dropped_and_a_device_at_work_is_not_asked_twice(
    crew: Crew,
) -> None:
    first = put(crew, 1, 2, 3)
    one, other = STAGE.players
    at_work = nodes_begun(one, other)
    second = put(crew, 1, 4)
    assert crew.take(first[2].metadata.message_id) is None
    assert reply(crew, second[0]).error.code == 5
    one.answers.put(content())  # late, and nobody waits for it
    assert nodes_begun(one) == [4]
    one.answers.put(content())
    assert reply(crew, second[1]).has_content()
    assert crew.take(first[0].metadata.message_id) is None
    assert sorted(at_work) == [1, 2]
