"""A submitted run from its start to its outcome, as the one who submitted it sees it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from nectar.engines.flower.client import Outcome
from nectar.engines.flower.connection import Connection
from nectar.engines.flower.log import Screen
from nectar.engines.interrupt import Interrupted, Interrupts
from nectar.engines.remote.following import follow
from nectar.engines.remote.silence import breaking_silence
from nectar.engines.remote.standing import Reading


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
    """Show a run's log and end until Ctrl-C, which ends the watching alone; LaunchError if the SuperLink is gone."""
    screen = Screen(out or sys.stdout, verbose=verbose)
    reading = Reading()
    with breaking_silence(connection, run, reading, screen.say) as heard:

        def see(line: str) -> None:
            heard()
            reading.see(line)
            screen.show(line)

        outcome, signal = _undisturbed(lambda: follow(connection, run, see))
    if outcome is not None and not outcome.completed:
        screen.say_failed(outcome)
    output_dir, _, record = reading.record.rpartition("/")
    return Watched(outcome, record, output_dir, signal)


def _undisturbed(work: Callable[[], Outcome]) -> tuple[Outcome | None, int]:
    interrupts = Interrupts()
    try:
        with interrupts:
            return work(), 0
    except Interrupted as interrupted:
        return None, interrupted.number
    finally:
        interrupts.restore()
