"""How long a machine works on what another asked for where no instruction bounds it: looked at between two files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_check: ContextVar[Callable[[], None] | None] = ContextVar("check", default=None)


@contextmanager
def checked_by(check: Callable[[], None]) -> Iterator[None]:
    """Have ``check`` called between the steps of what is done within; it raises when the time is over."""
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


def look_at_the_clock() -> None:
    """Go on, unless whoever asked for this work has set a time for it that is over."""
    check = _check.get()
    if check is not None:
        check()
