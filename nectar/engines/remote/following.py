"""A run at a SuperLink that is not ours: its log to the end, however often the connection breaks, and its outcome."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from nectar.engines.flower.client import Outcome
from nectar.engines.flower.connection import Connection
from nectar.engines.flower.job import LaunchError
from nectar.engines.flower.log import follow_lines

#: a SuperLink is looked at so often, and taken for gone after so many failures in a row
_LOOK_SECONDS, _FAILURES = 5.0, 3

#: and waited for so long before its run is given up on
_GONE_SECONDS = 45.0

_RETRY_SECONDS = 2.0


def follow(connection: Connection, run: str, see: Callable[[str], object]) -> Outcome:
    """Show every line of a run's log once, until the run is over, and return its outcome.

    Parameters
    ----------
    see : callable
        Called with each line, its line end included.

    Raises
    ------
    LaunchError
        The SuperLink has gone and did not come back; the run's outcome is not known.
    """
    client = connection.client()

    def lines() -> Iterator[str]:
        over = threading.Event()
        try:
            yield from client.log_lines(run, lambda: _watch(connection, over))
        finally:
            over.set()

    return follow_lines(lines, lambda: _outcome(connection, run), see)


def _watch(connection: Connection, over: threading.Event) -> None:
    """Return when the SuperLink is gone, or nobody asks any more."""
    failures = 0
    while failures < _FAILURES and not over.wait(_LOOK_SECONDS):
        failures = failures + 1 if connection.health() else 0


def _outcome(connection: Connection, run: str) -> Outcome:
    deadline = time.monotonic() + _GONE_SECONDS
    while True:
        try:
            return connection.client().outcome(run)
        except LaunchError as error:
            if time.monotonic() >= deadline:
                raise LaunchError(
                    f"The SuperLink at {connection.address} does not answer any more, so the outcome of run {run} is "
                    f"not known ({error})"
                ) from None
            time.sleep(_RETRY_SECONDS)
