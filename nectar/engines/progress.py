"""The progress of a run between two of its log lines: how far the round is, and the remaining time."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from common.learning.compute import watched
from common.sites import Site
from nectar.arguments import format_duration
from server_app.app import Observer
from server_app.run_directory import RunDirectory

logger = logging.getLogger("flwr")

_ON_TERMINAL, _IN_LOG = 1.0, 60.0
"""Seconds between two lines: one that replaces the last on a terminal, one more in a log."""


class Progress(Observer):
    """Computes from the reported work of the sites and the server how long a round and the run take.

    Parameters
    ----------
    rounds : int
        The run's last round.
    asked : int
        Sites asked in a round; 0 where the server alone works.
    clock : callable
        Seconds that only grow.
    """

    def __init__(
        self, rounds: int, asked: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rounds, self._clock = rounds, clock
        self._round = 0
        self._started: float | None = None
        self._answered: float | None = None
        self._done, self._asked, self._usually = 0, asked, asked
        self._parts: dict[str, float] = {}
        self._last: tuple[float, float] | None = (
            None  # seconds of the sites, and then of the server
        )

    def begun(self, record: RunDirectory, sites: Sequence[Site]) -> None:
        """Read from the record how many rounds a resumed run has done."""
        if lines := record.metrics():
            self._round = max(line["round"] for line in lines)
            self._begin_round()

    def round_done(self, server_round: int, rounds: int, sites: Sequence[Site]) -> None:
        """Note that a round has ended and the next one starts."""
        self._begin_round()

    def _begin_round(self) -> None:
        now = self._clock()
        if self._started is not None:
            answered = self._started if self._answered is None else self._answered
            self._last = answered - self._started, now - answered
        self._round += 1
        self._started, self._answered = now, None
        self._done, self._asked, self._parts = 0, self._usually, {}

    def __call__(self, done: int, of: int) -> None:
        """Note how many of the round's sites have replied."""
        if self._started is None:
            return  # who is there
        self._done, self._asked, self._parts = done, of, {}
        if done == of:
            self._answered = self._clock()

    def step(self, where: str, done: int, steps: int) -> None:
        """Note the progress of a site's work, or of the server's."""
        self._parts[where] = min(1.0, done / max(1, steps))

    def line(self) -> str:
        """Return the line of progress; empty before the first round and after the last."""
        if self._started is None or self._round > self._rounds:
            return ""
        at_server = self._asked == self._done
        part = sum(self._parts.values())
        if at_server:
            what = f"at the server{f', {100 * part:.0f} % done' if part else ''}"
        else:
            share = f", {100 * (self._done + part) / self._asked:.0f} % done" if part else ""
            what = f"{self._done} of {self._asked} sites{share}"
        left = self._seconds_left(part, at_server)
        if left is None:
            return f"round {self._round}/{self._rounds}: {what}"
        total = sum(self._last) if self._last else self._clock() - self._started + left
        run = left + total * (self._rounds - self._round)
        round_left, run_left = format_duration(left), format_duration(run)
        return f"round {self._round}/{self._rounds}: {what}; {round_left} left in this round, {run_left} in the run"

    def _seconds_left(self, part: float, at_server: bool) -> float | None:
        """Return the seconds until the end of the round; None if nothing was measured yet."""
        assert self._started is not None
        now = self._clock()
        sites, server = self._last or (None, None)
        if at_server:
            taken = now - (self._started if self._answered is None else self._answered)
            total, after = taken / part if part else server, 0.0
        else:
            taken, work = now - self._started, self._done + part
            total, after = taken * self._asked / work if work else sites, server or 0.0
        return None if total is None else max(0.0, total - taken) + after


@contextmanager
def progress_shown(progress: Progress) -> Iterator[None]:
    """Show ``progress`` within: on a terminal a line that is updated, else one line a minute in the log."""
    terminal = sys.stderr.isatty()
    over = threading.Event()

    def show() -> None:
        while not over.wait(_ON_TERMINAL if terminal else _IN_LOG):
            line = progress.line()
            if line and terminal:
                print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
            elif line:
                logger.info("%s", line)

    def wipe(record: logging.LogRecord) -> bool:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
        return True

    handlers = list(logger.handlers) if terminal else []
    for handler in handlers:
        handler.addFilter(wipe)
    shower = threading.Thread(target=show, daemon=True)
    shower.start()
    try:
        with watched(progress.step):
            yield
    finally:
        over.set()
        shower.join()
        for handler in handlers:
            handler.removeFilter(wipe)
        if terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
