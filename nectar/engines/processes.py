"""Child processes: each is started in its own session, dies with its parent, and is ended step by step."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import IO, TypeVar

import psutil

Steps = Sequence[tuple[signal.Signals, float]]
"""Signals, each with the seconds that a process has to end after it."""

#: what a process of Nectar's own has to put in order is done within the first of these
STEPS: Steps = ((signal.SIGTERM, 5.0), (signal.SIGKILL, 20.0))

#: prctl's request for a signal at the parent's death, of Linux's prctl.h
_PR_SET_PDEATHSIG = 1

_POLL = 0.02


P = TypeVar("P", subprocess.Popen[bytes], psutil.Process)
T = TypeVar("T")


def start(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    output: IO[bytes] | int | None = None,
    errors: IO[bytes] | int | None = None,
    keep: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a program that reads nothing.

    It has its own session: Ctrl-C goes to this process alone, which ends things in order.

    Parameters
    ----------
    environment : mapping of str to str, optional
        All its variables; by default this process's.
    folder : Path, optional
        Its working directory; by default this process's.
    output, errors : file or int, optional
        Where its standard output and errors go; by default where this process's go.
    keep : sequence of int
        File descriptors that it inherits.
    """
    return subprocess.Popen(
        command,
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        pass_fds=keep,
        start_new_session=True,
    )


def module_command(module: str, *words: str) -> list[str]:
    """Return the command that runs a module of Nectar's, whose first argument is this process's number."""
    return [sys.executable, "-P", "-m", module, str(os.getpid()), *words]


def import_path() -> dict[str, str]:
    """Return the variable by which a child imports what this process does, wherever either was started."""
    return {"PYTHONPATH": os.pathsep.join(str(Path(entry or ".").absolute()) for entry in sys.path)}


def end_with(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have a signal sent to this process when ``parent`` dies, even by SIGKILL; end at once if it has.

    On Linux the system sends it, when the parent's *thread* that started this process ends. Elsewhere a thread of this
    process looks for its parent every second.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    else:
        threading.Thread(target=_watch, args=(parent, number), daemon=True).start()
    if os.getppid() != parent:  # it died before the request
        os._exit(1)


def _watch(parent: int, number: signal.Signals) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), number)


def listen(grace: int = 0) -> None:
    """Let the first SIGINT or SIGTERM ask for an orderly end, and ignore later ones, which would disturb the clean-up.

    SIGINT is heard also where a shell made its background jobs ignore it.

    Parameters
    ----------
    grace : int
        Seconds after which the system ends this process all the same; 0 for never.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)

    def heard(number: int, frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        signal.alarm(grace)
        signal.default_int_handler(number, frame)

    for number in numbers:
        signal.signal(number, heard)


def end(living: Callable[[], Collection[P]], steps: Steps = STEPS) -> list[P]:
    """End processes: each signal in turn, until none is left.

    Parameters
    ----------
    living : callable
        Returns those that are still there. They may still be starting others: these get the signal as they appear.
    steps : sequence of (signal, float)
        The signals, and how long each is waited for.

    Returns
    -------
    list
        Those that are there all the same, normally none.
    """
    for number, seconds in steps:
        deadline, signalled = time.monotonic() + seconds, set[P]()
        while left := set(living()):
            for process in left - signalled:
                with suppress(psutil.Error, OSError):  # gone, or not to be touched
                    process.send_signal(number)
            signalled |= left
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL)
        else:
            return []
    return list(living())


def living(chosen: Callable[[int], bool] = lambda pid: True) -> list[psutil.Process]:
    """Return this user's processes that are ``chosen``, except this one and zombies."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # gone meanwhile
            if process.pid == os.getpid() or not chosen(process.pid):
                continue
            if process.uids().real == os.getuid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def how_it_ended(code: int) -> str:
    """Return why a child ended, by its exit code, as a clause."""
    if code >= 0:
        return f"it ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ", probably for lack of memory" if name == "SIGKILL" else ""
    return f"it was killed by {name}{hint}"


# ---- interrupt -----------------------------------------------------------------------------------
_NUMBERS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class Interrupted(BaseException):
    """A signal asked this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.name = signal.Signals(number).name


def until_interrupted(work: Callable[[], T]) -> T:
    """Do ``work``, in which the first ending signal raises `Interrupted`; later ones do not disturb its clean-up.

    What the caller had ignored (nohup, a shell's background job) stays ignored. Outside the main thread, where Python
    allows no handlers, no signal is caught.
    """
    in_main = threading.current_thread() is threading.main_thread()
    caught = [n for n in _NUMBERS if in_main and signal.getsignal(n) is not signal.SIG_IGN]

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in caught:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    before = {number: signal.signal(number, interrupt) for number in caught}
    try:
        return work()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
