"""Signals that end a run, as one exception that is raised once and never during the clean-up."""

import signal
import threading
from types import FrameType
from typing import Any

_NUMBERS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class Interrupted(BaseException):
    """A signal asked this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.name = signal.Signals(number).name


class Interrupts:
    """While entered, the first ending signal raises `Interrupted`.

    From then, or from the exit, on they are ignored until `restore`, so that what follows can put things in order
    undisturbed.

    Outside the main thread, where Python allows no handlers, it does nothing.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _NUMBERS:
            # What the caller had ignored (nohup, a shell's background job) stays ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._raise)

    def __exit__(self, *_: object) -> None:
        self._ignore()

    def restore(self) -> None:
        """Put the handlers back that were there before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        self._ignore()
        raise Interrupted(number)

    def _ignore(self) -> None:
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)
