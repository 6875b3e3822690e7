"""What a test waits for while other processes or threads work."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator

import pytest


def until(condition: Callable[[], object], seconds: float = 300.0) -> None:
    """Wait until ``condition`` holds; after so many seconds it is a failure."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.02)


@pytest.fixture
def patience() -> Iterator[None]:
    """What waits for ever, as at a pipe, is a failure after five minutes."""

    def hangs(*_: object) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
