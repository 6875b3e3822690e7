"""What reading at another's word may touch on this machine, and how long it may take.

A machine that serves its own user alone reads anything, as long as it takes; a site reads what its owner allows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from common.errors import DataError


@dataclass(frozen=True)
class Bounds:
    """The folder that must contain every path of a run's settings, and whether missing files may be downloaded.

    A machine that serves its own user alone, where a run names any place, has no ``root``. With one, stores that find
    no room below the data directory go to ``keep``; without, to the user's cache.
    """

    root: Path | None = None
    download: bool = True
    keep: Path | None = None

    def inside(self, path: Path, key: str) -> Path:
        """Return ``path`` with its links followed, or raise DataError."""
        real = Path(os.path.realpath(path))
        if self.root is not None and not real.is_relative_to(os.path.realpath(self.root)):
            raise DataError(
                f"{key} is {path}, which is outside of this site's data-root {self.root}: nothing there was touched",
                reported=f"{key} names a place outside of this site's data-root: leave it out, or ask the site's owner "
                "where its data are",
            )
        return real

    def links_inside(self, folder: Path, key: str) -> None:
        """Refuse a folder with a link below it that leads out of ``root``, with a DataError."""
        if self.root is None:
            return
        pending, seen = [folder], set()
        while pending:
            place = Path(os.path.realpath(pending.pop()))
            if place in seen or not place.is_dir():
                continue
            seen.add(place)
            with os.scandir(place) as entries:
                for entry in entries:
                    if entry.is_symlink():
                        self.inside(Path(entry.path), f"a link below {key}")
                    if entry.is_dir():
                        pending.append(Path(entry.path))

    def may_download(self, name: str) -> None:
        """Refuse to fetch what is missing of the data set ``name``, unless that is allowed, with a DataError."""
        if not self.download:
            raise DataError(
                f"this site downloads nothing, and files of {name} are missing in its data directory: its owner puts "
                "them there, or restarts the SuperNode with allow-download=true in its node config"
            )


ANYWHERE = Bounds()
"""A machine that serves its own user alone."""


_check: ContextVar[Callable[[], None] | None] = ContextVar("check", default=None)


@contextmanager
def deadline_check(check: Callable[[], None]) -> Iterator[None]:
    """Call ``check`` between the steps of the work within; it raises when the time is over."""
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


def check_deadline() -> None:
    """Raise if the requester's time limit for this work is over."""
    check = _check.get()
    if check is not None:
        check()


def machine_cores() -> int:
    """Return how many cores this process may use; torch, which takes seconds to import, is not asked."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
