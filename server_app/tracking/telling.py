"""Telling of each round that is on record; whoever is told can fail or hang, and costs the run nothing."""

from __future__ import annotations

import json
import re
import threading
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from logging import getLogger
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from common.config.loading import SCHEMA
from server_app.metrics_file import without_nan

logger = getLogger("flwr")
T = TypeVar("T")

Line = dict[str, Any]
"""A round's line of metrics.jsonl."""

OnRound = Callable[[Line], object]
"""Told each round as soon as its line is on record and its checkpoint written: the line, a copy of its own."""

Pictures = Mapping[str, Path]
"""PNG files of a round's images, by site."""

#: seconds for which the end of a run waits for a tracker that is not done
_PATIENCE = 30.0

#: name and password in an address, which a tracker's own error may quote
_CREDENTIALS = re.compile(r"//[^/@\s]+@")


class Tracker(Protocol):
    """Takes a run's rounds somewhere else."""

    def round(self, line: Line, pictures: Pictures) -> None:
        """Take a round."""

    def close(self, outcome: str) -> None:
        """Take note that the run has ended, and how, as its record states it."""


class Guard:
    """Carries out what may fail: the first time the log gets its traceback, later a line."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._told = False

    def __call__(self, call: Callable[[], T]) -> T | None:
        """Return what ``call`` returns; None where it raised."""
        try:
            return call()
        except Exception as error:
            text = str(error) if self._told else traceback.format_exc().rstrip()
            said = _CREDENTIALS.sub("//", text)
            logger.warning("%s failed, which costs the run nothing: %s", self._name, said)
            self._told = True
            return None


class Apart:
    """A tracker on a thread of its own, so that no round waits for it.

    Parameters
    ----------
    begin : callable
        Returns the tracker; it is called on that thread, too.
    """

    def __init__(self, name: str, begin: Callable[[], Tracker]) -> None:
        self._name, self._begin = name, begin
        self._outcome = ""
        self._rounds: SimpleQueue[tuple[Line, Pictures] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def round(self, line: Line, pictures: Pictures) -> None:
        """Hand over a round."""
        if self._thread.is_alive():
            self._rounds.put((line, pictures))

    def close(self, outcome: str) -> None:
        """Let it finish, for as long as a run has patience."""
        self._outcome = outcome
        self._rounds.put(None)
        self._thread.join(_PATIENCE)
        if self._thread.is_alive():
            logger.warning(
                "%s did not take all rounds within %.0f s and is not waited for; the record has them all",
                *(self._name, _PATIENCE),
            )

    def _work(self) -> None:
        guard = Guard(self._name)
        tracker = guard(self._begin)
        if tracker is None:
            return
        while (told := self._rounds.get()) is not None:
            guard(partial(tracker.round, *told))
        guard(partial(tracker.close, self._outcome))


class Telling:
    """Tells a user's own function and a tracker of each round.

    Parameters
    ----------
    pictures : callable
        Returns the pictures of a round that the tracker may be shown.
    """

    def __init__(
        self,
        on_round: OnRound | None = None,
        tracker: Tracker | None = None,
        pictures: Callable[[int], Pictures] = lambda server_round: {},
    ) -> None:
        self._on_round, self._tracker, self._pictures = on_round, tracker, pictures
        self._guard = Guard("on_round")

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Tell of a round whose line is on record."""
        if self._tracker is not None:
            self._tracker.round(_as_recorded(line), self._pictures(line["round"]))
        if (on_round := self._on_round) is not None:
            self._guard(lambda: on_round(_as_recorded(line)))

    def close(self, outcome: str) -> None:
        """Tell the tracker that the run has ended."""
        if self._tracker is not None:
            self._tracker.close(outcome)


def _as_recorded(line: Mapping[str, Any]) -> Line:
    """Return a copy of a line as whoever reads metrics.jsonl has it."""
    copy: Line = json.loads(json.dumps(without_nan({"schema": SCHEMA, **line})))
    return copy
