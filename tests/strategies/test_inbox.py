"""Uploads that begin and do not end: they hold up neither the other sites, nor the deadline, nor the run's end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from federation import PromptGrid, run
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from small import Small

from strategies.exchange import exchange


class Uploading(PromptGrid):
    """A call that asks for partition-1's reply to an instruction to train does not return."""

    held = threading.Event()
    leaves = False
    later: ClassVar[float] = 0.0  # seconds by which the exchange's clock is ahead
    overdue = False
    _looks = 0
    _unfinished: frozenset[str] = frozenset()
    _pushed = 0.0

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Note what is never answered, and when."""
        messages = list(messages)
        ids = super().push_messages(messages)
        self._pushed = time.monotonic()
        train = [m for m in messages if m.metadata.message_type == "train"]
        self._unfinished = frozenset(m.metadata.message_id for m in train[1:2])
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Have nothing at once, as no real device has."""
        ids = set(message_ids)
        if time.monotonic() - self._pushed < 0.05:
            return []
        if ids & self._unfinished:
            assert self.held.wait(600), "somebody waits for what never comes"
        return super().pull_messages(ids)

    def get_node_ids(self) -> list[int]:
        """Return all nodes, without the second one if that has left.

        Whoever waits looks at them from time to time: the time is over some looks behind the other replies.
        """
        found = super().get_node_ids()
        if self.overdue and self._replies and self._replies.keys() <= self._unfinished:
            self._looks += 1
            if self._looks == 5:
                Uploading.later = 3600.0
        return [found[0], *found[2:]] if self.leaves and self._unfinished else found


@pytest.fixture(autouse=True)
def _release(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    Uploading.held.clear()
    monkeypatch.setattr(Uploading, "later", 0.0)
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + Uploading.later)
    monkeypatch.setattr(exchange, "time", clock)
    monkeypatch.setattr(exchange, "_PATIENCE", 0.2)
    yield
    Uploading.held.set()


def rejected(config: dict[str, Any]) -> dict[str, str]:
    """Run one round, see that the others' replies counted, and return the reasons of those that did not."""
    line = run(config, Uploading).metrics()[1]
    assert line["accepted"] == ["partition-0", "partition-2"]
    return dict(line["rejected"])


@pytest.mark.extended
def test_an_unfinished_upload_is_given_up_at_the_deadline(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Uploading, "overdue", True)
    config = small(rounds=1, set="federation.round_deadline=1800")
    assert rejected(config) == {"partition-1": "no reply within 1800 s"}


def test_an_unfinished_upload_is_given_up_when_its_node_has_left(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Uploading, "leaves", True)
    assert rejected(small(rounds=1)) == {
        "partition-1": "the node went away while it sent its reply"
    }


def test_a_grid_that_fails_ends_the_run_with_its_error(small: Small) -> None:
    class Failing(Uploading):
        """Its calls raise, though not the first one."""

        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            """Have nothing, then fail."""
            if time.monotonic() - self._pushed < 0.05:
                return []
            raise ConnectionError("the SuperLink is gone")

    with pytest.raises(ConnectionError, match="the SuperLink is gone"):
        run(small(rounds=1), Failing)


def test_an_upload_that_had_begun_before_holds_up_nobody_who_asks_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The roll call looks again and again: the first look of each must not wait for the rest of an upload either."""
    monkeypatch.setattr(Uploading, "overdue", True)
    grid = Uploading(ClientApp(), 2)
    asked = [Message(RecordDict(), node_id, "train") for node_id in grid.get_node_ids()]
    inbox = exchange.Inbox(grid)
    places = inbox.send(asked)
    replies = inbox.collect([*places][::-1], time.monotonic() + 1800)
    assert list(replies) == [0]
