"""The run's log as the terminal shows it: Flower's lines, without Flower's and Ray's small talk."""

import re
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from nectar.engines.flower.client import LogBroken, Outcome
from server_app.marked_lines import is_marked, told

_RETRY_SECONDS = 2.0

#: the log of a run that is over is read so often, until a reading does not break off
_READINGS = 3

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LEVEL = r"(?:\(\w+ pid=\d+\) )?(?:INFO|WARNING)\s*:\s*"

# Whole lines, never parts of one, and none at the level of an error: a line that is not known to
# be idle is shown.
_IDLE = re.compile(
    "|".join(
        [
            rf"{_LEVEL}$",
            rf"{_LEVEL}Starting logstream for run_id `\d+`$",
            rf"{_LEVEL}Starting Flower Simulation$",
            rf"{_LEVEL}Since flwr 1\.32, default simulated SuperNodes changed from 10 to 2\.$",
            rf"{_LEVEL}Federation `[^`]*` \(\d+ simulated SuperNodes\)$",
            rf"{_LEVEL}To change federation size, use the following command:$",
            rf"{_LEVEL}flwr federation simulation-config .*$",
            rf"{_LEVEL}Manually terminating ClientAppActor(?: \[repeated .*)?$",
            r"(?:\(\w*\s*pid=\d+\) )?\[mutex\.cc : \d+\] RAW: .*$",
            r"Using SuperLink: .*$",
            r"Successfully installed \S+ to \S+$",
            r".*FutureWarning: Tip: In future versions of Ray, Ray will no longer override "
            r"accelerator visible devices env var .*$",
        ]
    )
)
_WARNING_SOURCE = re.compile(r"\s+warnings\.warn\($")


def plain(line: str) -> str:
    """Give `line` without terminal colours."""
    return _COLOUR.sub("", line)


class NoiseFilter:
    """Says line by line what is worth showing; remembers a cut warning for its second line."""

    def __init__(self) -> None:
        self._after_warning = False

    def shows(self, line: str) -> bool:
        """Tell whether `line` (with or without its line end and colours) carries information."""
        text = plain(line).rstrip()
        source_line = self._after_warning and _WARNING_SOURCE.match(text) is not None
        idle = source_line or _IDLE.match(text) is not None
        self._after_warning = idle and "FutureWarning" in text
        return not idle


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
        self._noise = NoiseFilter()
        self._explained = False

    def show(self, line: str) -> None:
        """Show a line of the log, line end included; colours are for terminals alone, marked lines for programs.

        Behind the sentence that says why a run stopped Flower says it again, as a traceback.
        """
        self._explained = self._explained or bool(told(line, "stopped"))
        if is_marked(line):
            return
        if self._verbose or (self._noise.shows(line) and not self._explained):
            self._out.write(line if self._out.isatty() else plain(line))
            self._out.flush()

    def say(self, sentence: str) -> None:
        """Show a sentence of our own."""
        self._out.write(f"{sentence}\n")
        self._out.flush()

    def say_failed(self, outcome: Outcome) -> None:
        """Show that a run did not complete, with Flower's reason unless the log has said it."""
        self.say("The run did not complete." if self._explained else outcome.reason)


def follow_lines(
    lines: Callable[[], Iterator[str]], outcome: Callable[[], Outcome], see: Callable[[str], object]
) -> Outcome:
    """Read a run's log, each line once, until the run is over.

    Parameters
    ----------
    lines
        Gives the log from its beginning to the run's end; raises LogBroken where the connection breaks.
    see
        Called with each line, its line end included; the log's very last one may have none.
    """
    seen, left = 0, _READINGS
    while True:
        half, whole = "", True
        try:
            for number, line in enumerate(lines()):
                # After a broken connection the log comes again from its beginning.
                if number < seen:
                    continue
                if line.endswith("\n"):
                    see(line)
                    seen = number + 1
                else:
                    half = line
        except LogBroken:
            whole = False
        found = outcome()
        if found.finished:
            left -= 1
            if whole or not left:
                if half:
                    see(half)
                return found
        time.sleep(_RETRY_SECONDS)
