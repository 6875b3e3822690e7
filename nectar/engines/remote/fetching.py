"""The operator's side: ask for a record, read it from the log, put it where records lie."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from nectar.engines.flower.client import Client, Outcome
from nectar.engines.flower.connection import Connection
from nectar.engines.flower.job import LaunchError
from nectar.engines.remote.following import follow
from nectar.engines.remote.unpacking import unpack
from nectar.words import to_flwr
from server_app.marked_lines import told
from server_app.sending.lines import Arrival, FetchError, Head
from server_app.sending.request import LATEST, Request, checked_record

#: how often the log is read until all lines are there; the SuperLink keeps it
_READINGS = 3

#: what a run that only packs and prints may take
_SECONDS = 600.0


@dataclass(frozen=True)
class Fetched:
    """A record at home: where, whether it was written just now, and what of it could not come."""

    directory: Path
    written: bool
    left_out: tuple[str, ...]


def fetch(
    connection: Connection,
    app: Path,
    request: Request,
    output: Path,
    *,
    server_output: str = "",
    replace: bool = False,
) -> Fetched:
    """Bring a record home as a directory of its name below ``output``.

    Parameters
    ----------
    server_output : str
        The server's output directory, where it is not the server's default.
    replace : bool
        Whether the files of a completed run of that name at home may be replaced.

    Raises
    ------
    NectarError
        If there is no such record, it did not come whole, or it cannot be written.
    """
    head, content = ask(connection, app, request, server_output)
    target = output / checked_record(head.record)
    written = unpack(content, target, replace=replace, without=request.without)
    return Fetched(target, written, head.left_out)


def ask(
    connection: Connection, app: Path, request: Request, server_output: str = ""
) -> tuple[Head, bytes]:
    """Let the server send a record; return its words and the archive; FetchError if it refuses or not all came."""
    config = {"fetch": request.text(), "output-dir": server_output}
    client = connection.client()
    run = client.submit(app, ["--run-config", to_flwr(config)])
    with _ended_in_time(client, run):
        for _ in range(_READINGS):
            arrival, outcome, reason = _read(connection, run)
            if not outcome.completed:
                raise FetchError(reason or outcome.reason)
            if not arrival.problem():
                return _asked_for(request, *arrival.whole())
    raise FetchError(f"{arrival.problem()}, read {_READINGS} times: try again")


def _asked_for(request: Request, head: Head, content: bytes) -> tuple[Head, bytes]:
    """Return what came, if it is the record that was asked for.

    Raises
    ------
    FetchError
        If the server sent another one: under the name of a record here it would take that one's place.
    """
    if request.record not in (head.record, LATEST):
        raise FetchError(
            f"the server sent the record {head.record[:80]!r} where {request.record} was asked for: nothing is taken; "
            "look at the server's log of the run that sent it"
        )
    return head, content


def _read(connection: Connection, run: str) -> tuple[Arrival, Outcome, str]:
    """Return what the log holds, the run's outcome, and the reason that the server gave if it refused."""
    arrival, reasons = Arrival(), list[str]()

    def see(line: str) -> None:
        if not arrival.take(line) and (reason := told(line, "stopped").get("reason")):
            reasons.append(str(reason))

    outcome = follow(connection, run, see)
    return arrival, outcome, next(iter(reasons), "")


@contextmanager
def _ended_in_time(client: Client, run: str) -> Iterator[None]:
    """End a run that takes far too long; Flower would start it again and again on a server without room."""

    def end() -> None:
        with suppress(LaunchError):
            client.stop(run)

    timer = threading.Timer(_SECONDS, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
