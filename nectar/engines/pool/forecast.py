"""Whether a pool pays: a rule on what the devices of a run still cost, by those that have worked so far."""

from __future__ import annotations

from collections import deque

#: seconds that a pool must save at least: a worker needs five to ten of a core before its first device
LEAST_GAIN = 15.0

#: seconds that a device must take on average: below, carrying messages to and fro costs what a pool saves
LEAST_DEVICE = 0.02

#: devices whose mean is the forecast
_LATEST = 32


class Forecast:
    """What is known of the devices' seconds."""

    def __init__(self, rounds: int, asked: int) -> None:
        self._rounds, self._asked = rounds, asked
        self._seconds: deque[float] = deque(maxlen=_LATEST)
        self._warm = False

    def worked(self, seconds: float) -> None:
        """Note a device's seconds; the first one's do not count: it also imports and reads what the others find."""
        if self._warm:
            self._seconds.append(seconds)
        self._warm = True

    def pays(self, server_round: int, waiting: int, processes: int) -> bool:
        """Return whether ``processes`` workers would save more than starting them costs.

        Parameters
        ----------
        waiting : int
            Devices that are still to work in it.
        """
        if not self._seconds or processes < 2:
            return False
        each = sum(self._seconds) / len(self._seconds)
        left = each * (waiting + self._asked * max(0, self._rounds - server_round))
        return each >= LEAST_DEVICE and left * (1 - 1 / processes) >= LEAST_GAIN
