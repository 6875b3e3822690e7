"""A run's log as the terminal shows it: Flower's lines, without what is idle."""

from __future__ import annotations

import re
from typing import TextIO

from nectar.engines.flower.marked_lines import is_marked, marked_content

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_INFORMS = re.compile(r"^(?:\x1b\[\d+m)?INFO (?:\x1b\[0m)?: {0,7}")

# Whole lines, never parts of one, and none at the level of an error.
_IDLE = re.compile(
    r"(?:INFO|WARNING)\s*:\s*$|INFO\s*:\s*Start `flwr-serverapp` process$|Successfully installed \S+ to \S+$"
)

# Flower's reasons for a task that ended without a word.
_KILLED = ("Task failed with unknown error", "No heartbeat received from the task")


def plain(line: str) -> str:
    """Give `line` without terminal colours."""
    return _COLOUR.sub("", line)


class Screen:
    """Where a log is shown.

    Parameters
    ----------
    verbose
        Whether every line is, idle ones too.
    """

    def __init__(self, out: TextIO, *, verbose: bool) -> None:
        self._out = out
        self._verbose = verbose
        self._explained = False

    def show(self, line: str) -> None:
        """Show a line of the log, line end included; colours are for terminals alone, marked lines for programs.

        Behind the sentence that says why a run stopped Flower says it again, as a traceback.
        """
        self._explained = self._explained or bool(marked_content(line, "stopped"))
        if is_marked(line):
            return
        idle = _IDLE.match(plain(line).rstrip()) is not None
        if self._verbose or not (idle or self._explained):
            line = _INFORMS.sub("", line)
            self._out.write(line if self._out.isatty() else plain(line))
            self._out.flush()

    def say(self, sentence: str) -> None:
        """Show a sentence of our own."""
        self._out.write(f"{sentence}\n")
        self._out.flush()

    def say_failed(self, reason: str) -> None:
        """Show that a run did not complete, with Flower's reason unless the log has said it."""
        if any(words in reason for words in _KILLED):
            reason = (
                f"{reason.rstrip('.')}. The ServerApp or the SuperLink was killed or stopped. If the run has a record, "
                "the same command with resume=RECORD-ID in place of the settings continues it."
            )
        self.say("The run did not complete." if self._explained else reason)
