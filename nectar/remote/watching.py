"""A submitted run from its start to its outcome, as the one who submitted it sees it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from nectar.flower.client import Outcome
from nectar.flower.connection import Connection
from nectar.flower.log import Screen, plain
from nectar.interrupt import Interrupted, Interrupts
from nectar.remote.following import follow

#: what the ServerApp says of its record, as a line of its own: what sites say is quoted within other lines
_RECORD = re.compile(r"INFO\s[\d:, -]*:\s+the record is (?P<directory>\S.*/(?P<id>[^/\s]+))\s*")


@dataclass(frozen=True)
class Watched:
    """What was seen of a run.

    Attributes
    ----------
    outcome : Outcome or None
        The run's outcome; None if somebody stopped watching.
    record : str
        The id of its record; empty if it had none.
    output_dir : str
        The server's directory in which the record lies.
    signal : int
        The signal that ended the watching, 0 if none did.
    """

    outcome: Outcome | None
    record: str
    output_dir: str
    signal: int = 0


def watch(connection: Connection, run: str, *, verbose: bool, out: TextIO | None = None) -> Watched:
    """Show a run's log until it is over, or until Ctrl-C, which ends the watching and not the run.

    Raises
    ------
    LaunchError
        The SuperLink has gone and did not come back.
    """
    screen = Screen(out or sys.stdout, verbose=verbose)
    found = {"id": "", "directory": ""}

    def see(line: str) -> None:
        if not found["id"] and (match := _RECORD.fullmatch(plain(line))):
            found.update(match.groupdict())
        screen.show(line)

    outcome, signal = _undisturbed(lambda: follow(connection, run, see))
    directory = found["directory"].rpartition("/")[0]
    return Watched(outcome, found["id"], directory, signal)


def _undisturbed(work: Callable[[], Outcome]) -> tuple[Outcome | None, int]:
    interrupts = Interrupts()
    try:
        with interrupts:
            return work(), 0
    except Interrupted as interrupted:
        return None, interrupted.number
    finally:
        interrupts.restore()
