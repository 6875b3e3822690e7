"""Who is called after each round that is on record: a user's own function, a tracker; their failure costs nothing."""

from __future__ import annotations

import json
import re
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from logging import getLogger
from queue import SimpleQueue
from typing import Any, TypeVar

from common.config.resolved import Config
from common.config.sources import SCHEMA
from common.sites import Site
from server_app.record import Record, without_nan
from server_app.tracking import Line, MLflow, Pictures, TensorBoard, TrackedRun, begin, settings_of

logger = getLogger("flwr")
T = TypeVar("T")

OnRound = Callable[[Line], object]
"""Called with each round's line, a copy of its own, as soon as that is on record and its checkpoint written."""

#: seconds for which the end of a run waits for a tracker that is not done
_PATIENCE = 30.0

#: name and password in an address, which a tracker's own error may quote
_CREDENTIALS = re.compile(r"//[^/@\s]+@")


class Notifier:
    """Calls a user's own function and a tracker after each round."""

    def __init__(
        self,
        on_round: OnRound | None = None,
        tracker: InBackground | None = None,
        pictures: Callable[[int], Pictures] = lambda server_round: {},
    ) -> None:
        self._on_round, self._tracker, self._pictures = on_round, tracker, pictures
        self._guard = _Guard("on_round")

    @classmethod
    def of(
        cls,
        config: Config,
        record: Record,
        sites: Callable[[], Sequence[Site]],
        on_round: OnRound | None = None,
    ) -> Notifier:
        """Return a run's, with the tracker that its settings choose.

        Parameters
        ----------
        record : Record
            Its record, with the lines of the rounds that are done.
        sites : callable
            Returns the sites that take part at the moment.
        """
        track = config.track
        if track.by == "none":
            return cls(on_round)
        name, group = track.name or record.id, track.group or "nectar"
        before = tuple(record.metrics())
        run = TrackedRun(record.directory, name, group, settings_of(config), before)

        def pictures(server_round: int) -> Pictures:
            if not track.images or not all(site.partitions for site in sites()):
                return {}  # a site with data of its own has joined since
            folder = record.directory / "samples" / f"round-{server_round:03d}"
            return {path.stem: path for path in sorted(folder.glob("*.png"))}

        tracker = InBackground(f"track={track.by}", partial(begin, track.by, run))
        return cls(on_round, tracker, pictures)

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


class InBackground:
    """A tracker on a thread of its own, so that no round waits for it.

    Parameters
    ----------
    make : callable
        Returns the tracker; it is called on that thread, too.
    """

    def __init__(self, name: str, make: Callable[[], TensorBoard | MLflow]) -> None:
        self._name, self._make = name, make
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
        guard = _Guard(self._name)
        tracker = guard(self._make)
        if tracker is None:
            return
        while (told := self._rounds.get()) is not None:
            guard(partial(tracker.round, *told))
        guard(partial(tracker.close, self._outcome))


class _Guard:
    """Carries out what may fail: the first time the log gets its traceback, later a line."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._failed = False

    def __call__(self, call: Callable[[], T]) -> T | None:
        """Return what ``call`` returns; None if it raised."""
        try:
            return call()
        except Exception as error:
            text = str(error) if self._failed else traceback.format_exc().rstrip()
            message = _CREDENTIALS.sub("//", text)
            logger.warning("%s failed, which costs the run nothing: %s", self._name, message)
            self._failed = True
            return None


def _as_recorded(line: Mapping[str, Any]) -> Line:
    """Return a copy of a line as whoever reads metrics.jsonl has it."""
    copy: Line = json.loads(json.dumps(without_nan({"schema": SCHEMA, **line})))
    return copy
