"""A run's log: the lines shown on a terminal, and marked lines by which a ServerApp reports to programs."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from server_app.marked_lines import Kind

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_INFORMS = re.compile(r"^(?:\x1b\[\d+m)?INFO (?:\x1b\[0m)?: {0,7}")

# Whole lines, never parts of one, and none at the level of an error.
_IDLE = re.compile(
    r"(?:INFO|WARNING)\s*:\s*$|INFO\s*:\s*Start `flwr-serverapp` process$|Successfully installed \S+ to \S+$"
)

# Flower's reasons for a task that ended without a word.
_KILLED = ("Task failed with unknown error", "No heartbeat received from the task")

_MARKED = re.compile(
    r"nectar-(?P<kind>record|stopped|sites|round|completed|settings) (?P<content>\{.*\})"
)


def plain(line: str) -> str:
    """Return a line without terminal colours."""
    return _COLOUR.sub("", line)


def marked_content(line: str, kind: Kind) -> dict[str, Any]:
    """Return the content of a marked line of this kind; an empty dictionary for any other line, or a damaged one."""
    found = _MARKED.fullmatch(line.rstrip())
    if found is not None and found["kind"] == kind:
        with suppress(ValueError, RecursionError):
            return dict(json.loads(found["content"]))
    return {}


def is_marked(line: str) -> bool:
    """Return whether a line is for programs, and not for people."""
    return _MARKED.fullmatch(line.rstrip()) is not None


class Screen:
    """Where a log is shown.

    Parameters
    ----------
    verbose
        Whether idle lines are shown too.
    """

    def __init__(self, out: TextIO, *, verbose: bool) -> None:
        self._out = out
        self._verbose = verbose
        self._explained = False

    def show(self, line: str) -> None:
        """Show a line of the log, line end included; with colours on a terminal only, and no marked line.

        After the ServerApp's sentence why a run stopped, Flower repeats it as a traceback, which is left out.
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
        """Show that a run did not complete, with Flower's reason unless the log has given it."""
        if any(words in reason for words in _KILLED):
            reason = (
                f"{reason.rstrip('.')}. The ServerApp or the SuperLink was killed or stopped. If the run has a record, "
                "the same command with resume=RECORD-ID instead of the settings continues it."
            )
        self.say("The run did not complete." if self._explained else reason)
