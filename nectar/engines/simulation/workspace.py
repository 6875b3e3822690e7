"""A run's temporary directory: it marks the run's processes and goes with them.

The directory's name says who owns it (process, its start time, the process namespace), and its
path is the value of one variable in the environment of every process of the run. So whoever comes
later can tell a run that is alive from the remains of a wrapper that was itself killed.
"""

import contextlib
import itertools
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from nectar.engines.flower.job import LaunchError
from nectar.engines.simulation.processes import MARK, marked_processes, namespace, start_time, stop

# What Ray adds below its temporary directory up to a socket's name, and the system's limit.
_RAY_TAIL = len("/ray/session_2025-01-01_00-00-00_000000_4194304/sockets/plasma_store")
_SOCKET_PATH_LIMIT = 107

_NAME = re.compile(r"nectar-([0-9a-f]+)-([0-9a-f]+)-([0-9a-f]+)-(\d+)")
_numbers = itertools.count()


@dataclass(frozen=True)
class Owner:
    """A process, told from any later one with its number.

    Attributes
    ----------
    pid
        Process number.
    started
        Its start in clock ticks since boot (0 where the system does not tell).
    namespace
        The process namespace in which `pid` counts (0 where there is none).
    """

    pid: int
    started: int
    namespace: int

    @classmethod
    def current(cls) -> "Owner":
        """Give this process."""
        pid = os.getpid()
        return cls(pid, start_time(pid) or 0, namespace())

    @classmethod
    def of(cls, directory: Path) -> "Owner | None":
        """Read the owner from a directory's name; None if it is not one of ours."""
        match = _NAME.fullmatch(directory.name)
        if match is None:
            return None
        pid, started, namespace = (int(group, 16) for group in match.groups()[:3])
        return cls(pid, started, namespace)

    def dead(self) -> bool:
        """Tell whether the process is certainly gone (False where one cannot know)."""
        if self.namespace != namespace():
            return False
        if self.started:
            return start_time(self.pid) != self.started
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return False


def create() -> Path:
    """Make this run's temporary directory, readable by its user alone.

    Raises
    ------
    LaunchError
        No temporary directory whose path leaves room for Ray's sockets.
    """
    owner = Owner.current()
    name = f"nectar-{owner.pid:x}-{owner.started:x}-{owner.namespace:x}-{next(_numbers)}"
    for base in _bases():
        path = base / name
        if len(os.fsencode(path)) + _RAY_TAIL <= _SOCKET_PATH_LIMIT:
            path.mkdir(mode=0o700)
            return path
    raise LaunchError(
        f"The temporary directory {tempfile.gettempdir()} has too long a name for Ray's sockets "
        f"({_SOCKET_PATH_LIMIT} bytes with what Ray appends); set TMPDIR to a shorter one."
    )


def remove(directory: Path, *, at_once: bool = False) -> None:
    """End every process that `directory` marks, then delete it.

    Parameters
    ----------
    directory
        A run's directory.
    at_once
        Whether the processes have nothing left to put in order.

    Raises
    ------
    LaunchError
        A process survives even SIGKILL, or the directory cannot be deleted.
    """
    survivors = stop(str(directory), at_once=at_once)
    # A process that dies while its files are deleted may write one more: then once again.
    for _ in range(3):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            break
    if survivors:
        raise LaunchError(f"These processes of the run could not be ended: {survivors}.")
    if directory.exists():
        raise LaunchError(f"The temporary directory {directory} could not be deleted.")


def sweep() -> int:
    """End and delete what wrappers that were killed left behind.

    Returns
    -------
    int
        How many dead wrappers' remains were removed.
    """
    found = {Path(mark) for mark in marked_processes().values()}
    for base in _bases():
        found.update(base.glob("nectar-*"))
    dead = [path for path in found if (owner := Owner.of(path)) is not None and owner.dead()]
    removed = [path for path in dead if not path.exists() or _is_ours(path)]
    for path in removed:
        with contextlib.suppress(LaunchError):  # remains must not keep a new run from starting
            remove(path)
    return len(removed)


def mark(directory: Path) -> dict[str, str]:
    """Give the variable that marks the processes of the run in `directory`."""
    return {MARK: str(directory)}


def _bases() -> list[Path]:
    return list(dict.fromkeys([Path(tempfile.gettempdir()).resolve(), Path("/tmp")]))


def _is_ours(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and path.stat().st_uid == os.getuid()
