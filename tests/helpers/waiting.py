"""What a test waits for while other processes or threads work."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], object], seconds: float = 300.0) -> None:
    """Wait until ``condition`` holds; after so many seconds it is a failure."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.02)
