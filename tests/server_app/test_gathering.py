"""The wait for the sites: who is online and silent is told from who is not there, and holds nobody else up."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from federation import PromptGrid, run
from flwr.app import Error, Message
from flwr.proto.node_pb2 import NodeInfo
from small import Small
from standing_clock import StandingClock

from client_app.app import app as client_app
from common.errors import FederationError
from common.sites import Site
from nectar.engines.local_grid import LocalGrid
from strategies.exchange import membership as gathering
from strategies.exchange.membership import Question, wait_for_sites

pytestmark = pytest.mark.promise(
    "A federation in operation",
    "A busy site delays no other; a silent one is named once a minute",
)


class Busy(PromptGrid):
    """Three nodes, of which the last does not answer until it is free, and the second may come late."""

    def __init__(
        self, *args: Any, clock: Any = time, free_after: float = 1e9, late: float = 0.0, **kw: Any
    ) -> None:
        super().__init__(*args, **kw)
        self.clock, self.begun = clock, clock.monotonic()
        self.free_after, self.late = free_after, late
        self.asked: list[int] = []

    @property
    def age(self) -> float:
        """Seconds since it began."""
        return float(self.clock.monotonic() - self.begun)

    def get_node_ids(self) -> list[int]:
        """Return the nodes that have come."""
        first, second, third = super().get_node_ids()
        return [first, second, third] if self.age >= self.late else [first, third]

    def get_nodes(self) -> Iterator[NodeInfo]:
        """Return them with the names that they were registered with."""
        names = dict(
            zip(super().get_node_ids(), ("partition-0", "partition-1", "partition-2"), strict=True)
        )
        return (NodeInfo(node_id=i, name=names[i]) for i in self.get_node_ids())

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Note who is asked."""
        messages = list(messages)
        self.asked += [m.metadata.dst_node_id for m in messages]
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Withhold the busy node's answers."""
        busy = 1002 if self.age < self.free_after else None
        open_ids = [
            i
            for i in message_ids
            if (found := self._replies.get(i)) is None or found.metadata.src_node_id != busy
        ]
        return super().pull_messages(open_ids)


def gathered(grid: LocalGrid, deadline: float) -> list[Site]:
    asked = Question(classes=0, held_out=False, max_examples=10_000)
    return wait_for_sites(grid, 3, asked, deadline=deadline, min_replies=3).sites


def test_a_site_that_is_online_and_busy_is_said_to_be_that(
    small: Small,
    fake_clock: StandingClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three of three were online, and the run said to start the missing SuperNodes."""
    monkeypatch.setattr(gathering, "_EVERY", 0.2)
    grid = Busy(client_app, 3, small(), clock=fake_clock)
    with caplog.at_level("INFO", logger="flwr"), pytest.raises(FederationError) as caught:
        gathered(grid, 0.8)
    assert str(caught.value) == (
        "2 of 3 sites were there after 0.8 s (partition-0, partition-1; online and busy or not answering: partition-2 "
        "(node 1002)): wait until the silent sites are free (a run that was ended may still be at work there) or "
        "start their SuperNodes again, or lower federation.sites"
    )
    told = [r.getMessage() for r in caplog.records if "sites are there after" in r.getMessage()]
    assert 1 <= len(told) <= 4
    assert "2 of 3 sites are there after " in told[0]
    assert " of 0.8 s (partition-0, partition-1; online" in told[0]
    assert grid.asked.count(1002) == 1


def test_missing_and_silent_ones_are_told_apart(small: Small, fake_clock: StandingClock) -> None:
    grid = Busy(client_app, 3, small(), clock=fake_clock, late=1e9)
    with pytest.raises(FederationError) as caught:
        gathered(grid, 0.3)
    assert "1 of 3 sites were there after 0.3 s (partition-0; online and busy" in str(caught.value)
    assert "): start the missing SuperNodes, wait until the silent" in str(caught.value)


def test_a_busy_site_keeps_no_late_one_from_being_asked(
    small: Small, fake_clock: StandingClock
) -> None:
    """The first question's whole deadline was waited for before anybody else was asked."""
    grid = Busy(client_app, 3, small(), clock=fake_clock, late=0.5, free_after=1.0)
    found = gathered(grid, 20.0)
    assert [site.name for site in found] == ["partition-0", "partition-1", "partition-2"]
    assert grid.age < 5
    assert sorted(grid.asked) == [1000, 1001, 1002]


def test_one_that_lost_its_question_is_asked_once_more(
    small: Small, fake_clock: StandingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A SuperNode that was started again under its own key has forgotten what it was asked."""
    monkeypatch.setattr(gathering, "_AGAIN", 0.3)

    class Forgetful(Busy):
        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            """Lose the first answer of the last node."""
            ids = list(message_ids)
            if self.asked.count(1002) == 1:
                lost = [i for i in ids if i in self._replies]
                lost = [i for i in lost if self._replies[i].metadata.src_node_id == 1002]
                ids = [i for i in ids if i not in lost]
            return super().pull_messages(ids)

    grid = Forgetful(client_app, 3, small(), clock=fake_clock, free_after=0.0)
    assert len(gathered(grid, 20.0)) == 3
    assert grid.asked.count(1002) == 2


def test_a_run_waits_for_a_busy_site_and_goes_on(small: Small) -> None:
    record = run(small(rounds=1), Busy, free_after=0.5)
    assert len(record.metrics()[1]["accepted"]) == 3


class Slow(PromptGrid):
    """Hands each answer out once, as a SuperLink does, in a call that outlasts a look; who asks again learns so."""

    def __init__(self, *args: Any, **kw: Any) -> None:
        super().__init__(*args, **kw)
        self._calls: Counter[str] = Counter()

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Take two seconds over the first answer of node 1002, and say of one that was taken that it expired."""
        (asked,) = message_ids
        found = self._replies.get(asked)
        if found is None or found.metadata.src_node_id != 1002:
            return super().pull_messages([asked])
        self._calls[asked] += 1
        if self._calls[asked] > 1:
            expired = Message(Error(code=3, reason="Message Unavailable"), reply_to=found)
            expired.metadata.__dict__["_reply_to_message_id"] = asked
            return [expired]
        if len(self._calls) == 1:
            time.sleep(2.0)
        return super().pull_messages([asked])


@pytest.mark.extended
def test_an_answer_that_takes_longer_than_a_look_is_that_sites_and_nothing_is_warned_of(
    small: Small, caplog: pytest.LogCaptureFixture
) -> None:
    """It was asked for by a second call meanwhile, which the SuperLink told that the message expired."""
    grid = Slow(client_app, 3, small())
    with caplog.at_level("WARNING", logger="flwr"):
        found = gathered(grid, 60.0)
    assert [site.name for site in found] == ["partition-0", "partition-1", "partition-2"]
    assert [r.getMessage() for r in caplog.records] == []
    assert list(grid._calls.values()) == [1]
