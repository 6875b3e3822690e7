"""A submitted run from its start to its outcome, shown to the user who submitted it."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TextIO

from nectar.arguments import format_duration
from nectar.engines.flower.connection import Connection
from nectar.engines.flower.errors import CommandRefused, LaunchError
from nectar.engines.flower.federation import Run
from nectar.engines.flower.log import Screen
from nectar.engines.processes import until_interrupted

#: for how long a SuperLink may not answer, or the log of a finished run break off, before the run is given up on
_GONE_SECONDS = 45.0

_RETRY_SECONDS = 2.0

#: a minute, and some seconds in which the server's own sentence of that minute may arrive
_SILENCE = 70.0


def watch(connection: Connection, run: str, *, verbose: bool, out: TextIO | None = None) -> Run:
    """Show a run's log and its end; return the run with its outcome and what its log reported.

    Raises
    ------
    Interrupted
        A signal ended the watching; the run continues.
    LaunchError
        The SuperLink is gone, or knows no such run.
    """
    screen, reading = Screen(out or sys.stdout, verbose=verbose), Run(run)
    with breaking_silence(connection, reading, screen.say) as heard:

        def see(line: str) -> None:
            heard()
            reading.read(line)
            screen.show(line)

        ended = until_interrupted(lambda: follow(connection, run, see))
    if not ended.completed:
        screen.say_failed(ended.reason)
    return replace(ended, record=reading.record)


def follow(connection: Connection, run: str, see: Callable[[str], object]) -> Run:
    """Read a run's log until the run is over, however often the connection breaks, and return how it ended.

    Parameters
    ----------
    see : callable
        Called once with each line, its line end included; the log's very last one may have none.

    Raises
    ------
    LaunchError
        The SuperLink has gone and did not come back, or knows no such run; the run's outcome is not known.
    """
    found, after, rest, given_up_at = Run(run), 0.0, "", math.inf
    with connection.superlink() as superlink:
        while True:
            is_known = False
            try:
                found = superlink.run(run)
                is_known = True
                if not found.finished:
                    given_up_at = math.inf
                for place, text in superlink.log(run, after):
                    after = place
                    *lines, rest = (rest + text).split("\n")
                    for line in lines:
                        see(f"{line}\n")
            except LaunchError as error:
                if isinstance(error, CommandRefused) and not is_known:
                    message = f"The SuperLink at {connection.address} has no run {run}: {error}"
                    raise LaunchError(message) from None
                given_up_at = min(given_up_at, time.monotonic() + _GONE_SECONDS)
                if time.monotonic() < given_up_at:
                    time.sleep(_RETRY_SECONDS)
                    continue
                if not found.finished:
                    raise LaunchError(
                        f"The SuperLink at {connection.address} no longer answers, so the outcome of run {run} "
                        f"is unknown ({error})"
                    ) from None
            if found.finished:  # before its log was read to the end
                if rest:
                    see(rest)
                return found


@contextmanager
def breaking_silence(
    connection: Connection, run: Run, say: Callable[[str], object], every: float = _SILENCE
) -> Iterator[Callable[[], None]]:
    """Report every ``every`` seconds when a run will be over, and for whom it waits if its log was silent for so long.

    Yields
    ------
    callable
        To be called at each line of the log.
    """
    started = last_line = time.monotonic()
    over = threading.Event()

    def heard() -> None:
        nonlocal last_line
        last_line = time.monotonic()

    def report() -> None:
        last_report = started
        while not over.wait(every):
            silent, last_report = last_line <= last_report, time.monotonic()
            seconds = f"{last_report - started:.0f} s"
            with suppress(LaunchError):  # whether the SuperLink is still there is seen elsewhere
                if silent:
                    sentence = f"({seconds}: {_waiting_for(connection, run)}{_time_left(run)})"
                else:
                    sentence = f"({seconds}{_time_left(run)})" if _time_left(run) else ""
                if sentence and not over.is_set():
                    say(sentence)

    threading.Thread(target=report, daemon=True).start()
    try:
        yield heard
    finally:
        over.set()


def _waiting_for(connection: Connection, run: Run) -> str:
    with connection.superlink() as superlink:
        status = superlink.run(run.run).status
        if status in ("pending", "starting"):
            return f"run {run.run} is {status}, the server has not started it yet"
        online = {node.node for node in superlink.nodes() if node.status == "online"}
    if not run.nodes:
        return f"run {run.run} is {status} and waits for its sites; {len(online)} are online"
    there = ", ".join(site for site, node in run.nodes.items() if node in online)
    away = ", ".join(site for site, node in run.nodes.items() if node not in online)
    return (
        f"round {max(1, run.reached + 1)} waits for replies; online: {there or 'none'}"
        f"{f'; away: {away}' if away else ''}"
    )


def _time_left(run: Run) -> str:
    if run.left < 1:
        return ""
    return f"; about {format_duration(run.left)} more after round {run.reached} of {run.rounds}"
