"""A clock that goes on only where a gathering waits, so that a busy machine comes too late for nothing."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from flwr.app import Message
from flwr.serverapp import Grid

from strategies.exchange import membership as gathering
from strategies.exchange.exchange import Inbox, pull


class StandingClock:
    """Stands in the place of the ``time`` module."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """Return the seconds that have been waited."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Go on."""
        self.now += seconds

    def inbox(self, grid: Grid) -> StandingInbox:
        """Return what looks for replies without threads."""
        return StandingInbox(self, grid)


class StandingInbox(Inbox):
    """Finds what is there, and lets the clock go on to the end of the look if something is not."""

    def __init__(self, clock: StandingClock, grid: Grid) -> None:
        super().__init__(grid)
        self._clock = clock

    def collect(self, places: Collection[int], end: float) -> dict[int, Message]:
        """Ask once for each."""
        found = {place: pull(self._grid, *self._sent[place]) for place in places}
        replies = {place: reply for place, reply in found.items() if reply is not None}
        if len(replies) < len(found):
            self._clock.now = max(self._clock.now, end)
        return replies


@pytest.fixture
def fake_clock(monkeypatch: pytest.MonkeyPatch) -> StandingClock:
    """Have whoever gathers sites go by a clock of the test's."""
    standing = StandingClock()
    monkeypatch.setattr(gathering, "time", standing)
    monkeypatch.setattr(gathering, "Inbox", standing.inbox)
    return standing
