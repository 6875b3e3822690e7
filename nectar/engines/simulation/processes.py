"""Finding and ending the processes that carry a run's mark in their environment, and no others."""

import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path

MARK = "NECTAR_SIMULATION"

# Ray and Flower put their things in order at SIGINT; what does not listen is made to.
_STEPS = ((signal.SIGINT, 6.0), (signal.SIGTERM, 3.0), (signal.SIGKILL, 20.0))
_POLL = 0.05
_PROC = Path("/proc")


def start_time(pid: int) -> int | None:
    """Give a process's start in clock ticks since boot; None if it is gone or untold."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The program's name, in parentheses, may itself hold spaces and parentheses: count behind it.
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])


def namespace(pid: int | None = None) -> int:
    """Give the process namespace of `pid` (default: this process); 0 if it is untold."""
    try:
        return (_PROC / str(pid or "self") / "ns" / "pid").stat().st_ino
    except OSError:
        return 0


def parse_mark(environment: bytes) -> str | None:
    """Find the mark in a process's environment block (``NAME=value`` ended by NUL bytes)."""
    prefix = f"{MARK}=".encode()
    for entry in environment.split(b"\0"):
        if entry.startswith(prefix):
            return os.fsdecode(entry.removeprefix(prefix))
    return None


def marked_processes() -> dict[int, str]:
    """Give every process of this user that carries a mark: process number -> mark."""
    if not (_PROC / "self" / "environ").exists():
        return _marked_by_ps()
    return {pid: mark for pid in _own_processes() if (mark := _mark_of(pid)) is not None}


def stop(mark: str, *, at_once: bool = False) -> list[int]:
    """End the processes of the run that carries `mark`: SIGINT, then SIGTERM, then SIGKILL, or SIGKILL `at_once`.

    Ray's workers write their title over their environment, mark included. They are known by their
    session: the wrapper and Flower start the run's processes in sessions of their own, and no
    number is given again as long as a session bears it.

    Returns
    -------
    list of int
        Processes that are still there, normally none.
    """
    sessions: set[int] = set()
    for number, grace in _STEPS[-1:] if at_once else _STEPS:
        deadline = time.monotonic() + grace
        signalled: set[int] = set()
        while pids := _members(mark, sessions):
            # Processes may still be starting others: those get the signal as they appear.
            for pid in pids - signalled:
                _send(pid, number, mark, sessions)
            signalled |= pids
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL)
        else:
            return []
    return sorted(_members(mark, sessions))


def _members(mark: str, sessions: set[int]) -> set[int]:
    """Give the run's processes; their sessions are added to `sessions`."""
    marked = {pid for pid, found in marked_processes().items() if found == mark}
    sessions |= {session for pid in marked if (session := _session(pid))}
    sessions.discard(os.getsid(0))
    return marked | {pid for pid in _own_processes() if _session(pid) in sessions}


def _session(pid: int) -> int | None:
    """Give the session of a process; None if it is gone or only waits to be reaped."""
    if _PROC.exists() and start_time(pid) is None:
        return None
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _own_processes() -> list[int]:
    """Give all processes of this user, this one excepted; none where there is no /proc."""
    pids = []
    with contextlib.suppress(FileNotFoundError):
        for entry in _PROC.iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and entry.stat().st_uid == os.getuid():
                    pids.append(int(entry.name))
    return [pid for pid in pids if pid != os.getpid()]


def _mark_of(pid: int) -> str | None:
    """Read one process's mark; None for a process that is gone or in another namespace."""
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    mark = parse_mark(environment)
    # From the host one sees a container's processes too, but not whether their wrapper lives.
    return mark if mark is not None and namespace(pid) == namespace() else None


def _send(pid: int, number: signal.Signals, mark: str, sessions: set[int]) -> None:
    """Signal a process, held by a descriptor so that its number cannot have passed to another."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if not hasattr(os, "pidfd_open"):
            os.kill(pid, number)
            return
        handle = os.pidfd_open(pid)
        try:
            if _mark_of(pid) == mark or _session(pid) in sessions:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def _marked_by_ps() -> dict[int, str]:
    """Find marks where there is no /proc: BSD's and macOS's ``ps`` show environments with -E."""
    listing = subprocess.run(
        ["ps", "-A", "-E", "-ww", "-o", "pid=,command="],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    pattern = re.compile(rf"\s*(\d+) .*\b{MARK}=(\S+)")
    found = {int(m[1]): m[2] for m in map(pattern.match, listing.splitlines()) if m}
    found.pop(os.getpid(), None)
    return found
