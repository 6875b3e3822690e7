"""A submitted run from its start to its outcome, as the one who submitted it sees it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from nectar.arguments import format_duration
from nectar.engines.flower.connection import Connection
from nectar.engines.flower.errors import CommandRefused, LaunchError
from nectar.engines.flower.log import Screen
from nectar.engines.processes import until_interrupted
from nectar.engines.remote.federation_status import RunStatus

if TYPE_CHECKING:
    from nectar.engines.flower.superlink import Run, SuperLink


@dataclass(frozen=True)
class Watched:
    """What was seen of a run.

    Attributes
    ----------
    outcome : Run or None
        The run once it was over; None if somebody stopped watching.
    record : str
        The directory of its record, at the server; empty if it had none.
    signal : int
        The signal that ended the watching, 0 if none did.
    """

    outcome: Run | None
    record: str
    signal: int = 0


def watch(connection: Connection, run: str, *, verbose: bool, out: TextIO | None = None) -> Watched:
    """Show a run's log and end until Ctrl-C, which ends the watching alone; LaunchError if the SuperLink is gone."""
    screen = Screen(out or sys.stdout, verbose=verbose)
    reading = RunStatus()
    with breaking_silence(connection, run, reading, screen.say) as heard:

        def see(line: str) -> None:
            heard()
            reading.see(line)
            screen.show(line)

        outcome, signal = until_interrupted(lambda: follow(connection, run, see))
    if outcome is not None and not outcome.completed:
        screen.say_failed(outcome.reason)
    return Watched(outcome, reading.record, signal.number if signal else 0)


# ---- following -----------------------------------------------------------------------------------
# A run's log to the end, however often the connection breaks, and its outcome.

#: a SuperLink that does not answer is waited for so long before its run is given up on
_GONE_SECONDS = 45.0

_RETRY_SECONDS = 2.0

#: the log of a run that is over is read so often, until a reading does not break off
_READINGS = 3


def follow(connection: Connection, run: str, see: Callable[[str], object]) -> Run:
    """Show every line of a run's log once, until the run is over, and return how it ended.

    Parameters
    ----------
    see : callable
        Called with each line, its line end included; the log's very last one may have none.

    Raises
    ------
    LaunchError
        The SuperLink has gone and did not come back, or knows no such run; the run's outcome is not known.
    """
    after, half, readings = 0.0, "", 0
    with connection.superlink() as superlink:
        while True:
            found = _outcome(superlink, run, connection.address)
            try:
                for place, text in superlink.log(run, after):
                    after = place
                    *lines, half = (half + text).split("\n")
                    for line in lines:
                        see(f"{line}\n")
            except LaunchError:
                readings += found.finished
                time.sleep(_RETRY_SECONDS)
                if readings < _READINGS:
                    continue
            if found.finished:  # before its log was read to the end
                if half:
                    see(half)
                return found


def _outcome(superlink: SuperLink, run: str, address: str) -> Run:
    deadline = time.monotonic() + _GONE_SECONDS
    while True:
        try:
            return superlink.run(run)
        except CommandRefused as refusal:
            raise LaunchError(f"The SuperLink at {address} knows no run {run}: {refusal}") from None
        except LaunchError as error:
            if time.monotonic() >= deadline:
                raise LaunchError(
                    f"The SuperLink at {address} does not answer any more, so the outcome of run {run} is not known "
                    f"({error})"
                ) from None
            time.sleep(_RETRY_SECONDS)


# ---- silence -------------------------------------------------------------------------------------
# What is said once a minute of a run at a SuperLink: how far it is, until when, and for whom a silent one waits.

#: a minute, and some seconds in which the server's own sentence of that minute may arrive
_SILENCE = 70.0


@contextmanager
def breaking_silence(
    connection: Connection,
    run: str,
    reading: RunStatus,
    say: Callable[[str], object],
    every: float = _SILENCE,
) -> Iterator[Callable[[], None]]:
    """Say every ``every`` seconds when a run will be over, and for whom it waits if its log has said nothing so long.

    Parameters
    ----------
    every : float
        Seconds.

    Yields
    ------
    callable
        To be called at each line of the log.
    """
    began = time.monotonic()
    state = {"heard": began}
    over = threading.Event()

    def heard() -> None:
        state["heard"] = time.monotonic()

    def listen() -> None:
        message = began
        while not over.wait(every):
            silent, message = state["heard"] <= message, time.monotonic()
            # Whether the SuperLink is still there is seen elsewhere.
            with suppress(LaunchError):
                if silent:
                    sentence = _sentence(connection, run, reading, message - began)
                elif _until(reading):
                    sentence = f"({message - began:.0f} s{_until(reading)})"
                else:
                    continue
                if not over.is_set():
                    say(sentence)

    threading.Thread(target=listen, daemon=True).start()
    try:
        yield heard
    finally:
        over.set()


def _sentence(connection: Connection, run: str, reading: RunStatus, seconds: float) -> str:
    with connection.superlink() as superlink:
        status = superlink.run(run).status
        if status in ("pending", "starting"):
            return f"({seconds:.0f} s: run {run} is {status}, the server has not begun it yet)"
        online = {node.number for node in superlink.nodes() if node.status == "online"}
    if not reading.nodes:
        return f"({seconds:.0f} s: run {run} is {status} and waits for its sites; {len(online)} are online)"
    there = ", ".join(site for site, node in reading.nodes.items() if node in online)
    away = ", ".join(site for site, node in reading.nodes.items() if node not in online)
    return (
        f"({seconds:.0f} s: round {max(1, reading.reached + 1)} waits for replies; online: {there or 'none'}"
        f"{f'; away: {away}' if away else ''}{_until(reading)})"
    )


def _until(reading: RunStatus) -> str:
    if reading.left < 1:
        return ""
    return f"; about {format_duration(reading.left)} more after round {reading.reached} of {reading.rounds}"
