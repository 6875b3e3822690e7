"""What is said once a minute of a run at a SuperLink: how far it is, until when, and for whom a silent one waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from nectar.engines.flower.connection import Connection
from nectar.engines.flower.job import LaunchError
from nectar.engines.remote.standing import Reading
from nectar.spans import spoken

#: a minute, and some seconds in which the server's own sentence of that minute may arrive
_SILENCE = 70.0

_SECONDS = 120.0


@contextmanager
def breaking_silence(
    connection: Connection,
    run: str,
    reading: Reading,
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
        said = began
        while not over.wait(every):
            silent, said = state["heard"] <= said, time.monotonic()
            # Whether the SuperLink is still there is seen elsewhere.
            with suppress(LaunchError):
                if silent:
                    sentence = _sentence(connection, run, reading, said - began)
                elif reading.left:
                    sentence = f"({said - began:.0f} s{_until(reading)})"
                else:
                    continue
                if not over.is_set():
                    say(sentence)

    threading.Thread(target=listen, daemon=True).start()
    try:
        yield heard
    finally:
        over.set()


def _sentence(connection: Connection, run: str, reading: Reading, seconds: float) -> str:
    client = connection.client()
    status = client.outcome(run).status
    if status in ("pending", "starting"):
        return f"({seconds:.0f} s: run {run} is {status}, the server has not begun it yet)"
    listed = client.ask(["supernode", "list", connection.name], _SECONDS).get("nodes", [])
    online = {str(node["node-id"]) for node in listed if node["status"] == "online"}
    if not reading.nodes:
        return f"({seconds:.0f} s: run {run} is {status} and waits for its sites; {len(online)} are online)"
    there = ", ".join(site for site, node in reading.nodes.items() if node in online)
    away = ", ".join(site for site, node in reading.nodes.items() if node not in online)
    return (
        f"({seconds:.0f} s: round {max(1, reading.reached + 1)} waits for replies; online: {there or 'none'}"
        f"{f'; away: {away}' if away else ''}{_until(reading)})"
    )


def _until(reading: Reading) -> str:
    if not reading.left:
        return ""
    return f"; about {spoken(reading.left)} more after round {reading.reached} of {reading.rounds}"
