"""When the server stops waiting for what it asked for: behind that, computing on helps nobody."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from common.errors import FederationError
from common.specs.updates import SECONDS_LEFT


class Deadline:
    """The end of the round's time, by this machine's own clock from when the instruction was taken up.

    Parameters
    ----------
    seconds : float
        What is left; infinity for no deadline.
    """

    def __init__(self, seconds: float = math.inf, of: str = "round") -> None:
        self._seconds, self._of = seconds, of
        self._end = time.monotonic() + seconds

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Deadline:
        """Return the deadline that an instruction's configuration names; none where it names none."""
        return cls(float(config.get(SECONDS_LEFT, math.inf)))

    @property
    def left(self) -> float:
        """The seconds that are left, at least 0; infinity where there is no deadline."""
        return max(0.0, self._end - time.monotonic())

    def check(self) -> None:
        """Raise FederationError if the time is over; asked between two steps, it costs a look at the clock."""
        if time.monotonic() > self._end:
            raise FederationError(f"ran out of the {self._of}'s time ({self._seconds:.0f} s)")
