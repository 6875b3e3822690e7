"""A run's temporary directory: it marks the run's processes and goes with them.

Its path is the value of one variable in the environment of every process of the run, and its owner holds a lock on it.
So whoever comes later can tell a run that is alive from the remains of a wrapper that was itself killed.
"""

import contextlib
import fcntl
import itertools
import os
import re
import shutil
import signal
import tempfile
from pathlib import Path

import psutil

from nectar.engines import processes
from nectar.engines.flower.client import LaunchError

MARK = "NECTAR_SIMULATION"

# Ray and Flower put their things in order at SIGINT; what does not listen is made to.
_STEPS = ((signal.SIGINT, 6.0), (signal.SIGTERM, 3.0), (signal.SIGKILL, 20.0))

# What Ray adds below its temporary directory up to a socket's name, and the system's limit.
_RAY_TAIL = len("/ray/session_2025-01-01_00-00-00_000000_4194304/sockets/plasma_store")
_SOCKET_PATH_LIMIT = 107

_NAME = re.compile(r"nectar-simulation-\d+-\d+")
_numbers = itertools.count()


class Workspace:
    """A run's directory, its user's alone; LaunchError if no temporary path leaves room for Ray's sockets."""

    def __init__(self) -> None:
        self.directory = _free_place()
        new = self.directory.with_suffix(".new")  # no name of a directory that may be swept
        new.mkdir(mode=0o700)
        self._lock = _locked(new)
        new.rename(self.directory)

    def remove(self, *, at_once: bool = False) -> None:
        """End every process that the directory marks, then delete it.

        Parameters
        ----------
        at_once
            Whether the processes have nothing left to put in order.

        Raises
        ------
        LaunchError
            A process survives even SIGKILL, or the directory cannot be deleted.
        """
        try:
            _remove(self.directory, at_once=at_once)
        finally:
            if self._lock is not None:
                os.close(self._lock)


def marked_processes() -> dict[int, str]:
    """Return every process of this user that carries a mark: process number -> mark."""
    marks = {process.pid: _mark_of(process.pid) for process in processes.living()}
    return {pid: mark for pid, mark in marks.items() if mark is not None}


def stop(mark: str, *, at_once: bool = False) -> list[int]:
    """End the processes of the run that carries `mark`: SIGINT, then SIGTERM, then SIGKILL, or SIGKILL `at_once`.

    Ray's workers write their title over their environment, mark included. They are known by their
    session: the wrapper and Flower start the run's processes in sessions of their own, and no
    number is given again as long as a session bears it. One in a session of its own is known by
    its working directory, as long as it has no terminal: that one is a person's shell.

    Returns
    -------
    list of int
        Processes that are still there, normally none.
    """
    sessions: set[int] = set()

    def members() -> list[psutil.Process]:
        there = processes.living()
        marked = {process for process in there if _mark_of(process.pid) == mark}
        sessions.update(session for one in marked if (session := _session(one.pid)))
        sessions.discard(os.getsid(0))
        return [
            one
            for one in there
            if one in marked or _session(one.pid) in sessions or _works_in(one, mark)
        ]

    left = processes.end(members, _STEPS[-1:] if at_once else _STEPS)
    return sorted(process.pid for process in left)


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
    removed = 0
    for path in found:
        if not _NAME.fullmatch(path.name) or (path.exists() and not _is_ours(path)):
            continue
        lock = _locked(path)
        if lock is None and path.exists():  # its wrapper is alive
            continue
        removed += 1
        with contextlib.suppress(LaunchError):  # remains must not keep a new run from starting
            _remove(path)
        if lock is not None:
            os.close(lock)
    return removed


def mark(directory: Path) -> dict[str, str]:
    """Return the variable that marks the processes of the run in `directory`."""
    return {MARK: str(directory)}


def _remove(directory: Path, *, at_once: bool = False) -> None:
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


def _locked(directory: Path) -> int | None:
    """Lock a directory as its owner does, until what is returned is closed; None if it is locked, or not there."""
    try:
        handle = os.open(directory, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _mark_of(pid: int) -> str | None:
    """Return a process's mark; None for a process that is gone, another user's or in another namespace."""
    with contextlib.suppress(psutil.Error):
        found = psutil.Process(pid).environ().get(MARK)
        # From the host one sees a container's processes too, but not whether their wrapper lives.
        return found if found and _namespace(pid) == _namespace("self") else None
    return None


def _works_in(process: psutil.Process, directory: str) -> bool:
    """Return whether a process works in a run's directory, deleted or not, and nobody types into it."""
    with contextlib.suppress(psutil.Error, OSError):
        there = str(Path(f"/proc/{process.pid}/cwd").readlink()).removesuffix(" (deleted)")
        same = there == directory and _namespace(process.pid) == _namespace("self")
        return same and process.terminal() is None
    return False


def _namespace(pid: int | str) -> int:
    """Return the number of a process's process namespace; 0 if it is untold."""
    try:
        return Path(f"/proc/{pid}/ns/pid").stat().st_ino
    except OSError:
        return 0


def _session(pid: int) -> int | None:
    """Return the session of a process; None if it is gone."""
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _free_place() -> Path:
    name = f"nectar-simulation-{os.getpid()}-{next(_numbers)}"
    for base in _bases():
        if len(os.fsencode(base / name)) + _RAY_TAIL <= _SOCKET_PATH_LIMIT:
            return base / name
    raise LaunchError(
        f"The temporary directory {tempfile.gettempdir()} has too long a name for Ray's sockets "
        f"({_SOCKET_PATH_LIMIT} bytes with what Ray appends); set TMPDIR to a shorter one."
    )


def _bases() -> list[Path]:
    return list(dict.fromkeys([Path(tempfile.gettempdir()).resolve(), Path("/tmp")]))


def _is_ours(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and path.stat().st_uid == os.getuid()
