"""A lock per machine, shared by all runs and exclusive for timed ones, that shows whether a run was alone.

Each run adds a byte to the lock's file when it starts. So a run was alone if no other
held the lock when it started, and the file has no more bytes when it ends.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import getLogger

from common.errors import ConfigError
from common.storage.files import cache_folder, open_regular

TIMED = "NECTAR_TIMED"
"""The variable with which a comparison has its run wait for all others, and others wait for it."""


@contextmanager
def on_this_machine() -> Iterator[Callable[[], bool]]:
    """Hold this machine's lock; yield a function that returns whether no other run of this user has held it meanwhile.

    A timed run waits for all others, any other for one that is timed; ConfigError if that one cannot hold the lock.
    """
    timed = bool(os.environ.get(TIMED))
    try:
        file = _opened()
    except OSError:
        if timed:
            raise ConfigError(
                "--alone needs a lock in the user's cache folder, which cannot be written: set XDG_CACHE_HOME to a "
                "folder that can."
            ) from None
        yield lambda: False
        return
    try:
        first = _lock(file, fcntl.LOCK_EX, wait=timed)
        if not (first and timed):
            _lock(file, fcntl.LOCK_SH, wait=True)
        os.write(file, b".")
        before = os.fstat(file).st_size
        yield lambda: first and os.fstat(file).st_size == before
    finally:
        os.close(file)


def _opened() -> int:
    folder = cache_folder()
    if folder is None:
        raise FileNotFoundError
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"machine-{socket.gethostname()}.lock"
    return open_regular(place, os.O_RDWR | os.O_CREAT | os.O_APPEND)


def _lock(file: int, kind: int, *, wait: bool) -> bool:
    """Lock a file, and return whether it is locked; print a line before waiting for it."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        if wait:
            getLogger("flwr").info(
                "waiting for another run on this machine (nectar compare --alone)"
            )
            fcntl.flock(file, kind)
        return wait
    return True
