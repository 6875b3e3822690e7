"""Forking a process that has imported what ClientApps need, for each stub that asks, until none has in a while.

It has one thread, so that a fork is a whole process. (`multiprocessing` has a fork server, too: it imports the main
program of its user again in every fork, and gives it neither files nor a log of its own.)
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType

from nectar.engines.site.stub import CODE, PID

#: seconds within which who asks must have said everything
_PATIENCE = 30.0
_FILES = 3
_LENGTH = 8


@dataclass(frozen=True)
class ForkRequest:
    """A process that somebody asked for.

    Attributes
    ----------
    files : list of int
        Descriptors of its standard input, output and errors, open in this process.
    """

    words: list[str]
    folder: bytes
    environment: dict[bytes, bytes]
    files: list[int]

    def close(self) -> None:
        """Close the files here."""
        for number in self.files:
            os.close(number)

    def put_on(self, *program: str) -> None:
        """Make this process the one that was asked for: its words after ``program``, folder, environment and files."""
        for i, number in enumerate(self.files):
            os.dup2(number, i)
        self.close()
        os.chdir(self.folder)
        os.environb.clear()
        os.environb.update(self.environment)
        sys.argv = [*program, *self.words]


def received(asker: socket.socket) -> ForkRequest:
    """Read a request, as :func:`nectar.engines.site.stub.hand_over` writes it.

    Raises
    ------
    OSError, EOFError, ValueError
        If who asks goes away, is too slow, or sends something else.
    """
    asker.settimeout(_PATIENCE)
    content, files, _, _ = socket.recv_fds(asker, 1 << 16, _FILES)
    try:
        while (missing := _missing(content)) > 0:
            more = asker.recv(missing)
            if not more:
                raise EOFError("who asked went away")
            content += more
        count, *items = content[_LENGTH:].split(b"\0")
        words, (folder, *variables) = items[: int(count)], items[int(count) :]
        if len(files) != _FILES:
            raise ValueError(f"{len(files)} files came where {_FILES} were due")
    except (EOFError, OSError, ValueError):
        for number in files:
            os.close(number)
        raise
    pairs = (variable.partition(b"=") for variable in variables)
    environment = {name: value for name, _, value in pairs}
    return ForkRequest([os.fsdecode(word) for word in words], folder, environment, files)


def _missing(content: bytes) -> int:
    """Return how many bytes are still to come."""
    if len(content) < _LENGTH:
        return _LENGTH - len(content)
    return _LENGTH + int.from_bytes(content[:_LENGTH], "big") - len(content)


class Woken:
    """What becomes readable when this process gets a signal, or a child of it ends."""

    def __init__(self) -> None:
        self._end, self._wake = socket.socketpair()
        for end in (self._end, self._wake):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _heard)

    def fileno(self) -> int:
        """Return the descriptor, for `select`."""
        return self._end.fileno()

    def clear(self) -> None:
        """Wait for the next signal."""
        self._end.recv(4096)

    def leave(self) -> None:
        """Be woken no more, in a fork."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._end.close()
        self._wake.close()


class ForkServer:
    """Forks of this process, each known to the one who asked for it by a socket.

    Who asked is told the fork's number, and its exit code when it has ended; when that socket closes, the fork is
    asked to end, and made to.

    Parameters
    ----------
    door : socket.socket
        Where those who ask are heard. Who comes first is there already.
    grace : float
        Seconds that a fork has to end before it is killed.
    idle : float
        Seconds without a fork after which nobody is answered any more.
    """

    def __init__(self, door: socket.socket, grace: float, idle: float) -> None:
        self._door, self._grace, self._idle = door, grace, idle
        self._askers: dict[int, socket.socket] = {}
        self._kill_at: dict[int, float] = {}
        self._woken = Woken()

    def serve(self) -> ForkRequest | None:
        """Answer until nobody comes; in a fork, return what it is to be, and None in this process at the end."""
        end_at = time.monotonic()
        while (ready := self._ready(end_at)) or self._askers:
            for end in ready:
                if isinstance(end, Woken):
                    end.clear()
                elif end is not self._door:
                    self._end_fork_of(end)
                elif (request := self._fork(end.accept()[0])) is not None:
                    return request
            if self._reap():  # who looks whether this process lives is no reason to wait for more
                end_at = time.monotonic() + self._idle
            self._kill_overdue()
        return None

    def _reap(self) -> bool:
        """Tell those who asked for a fork that has ended its exit code; return whether one has."""
        before = len(self._askers)
        for pid in list(self._askers):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._kill_at.pop(pid, None)
                code = os.waitstatus_to_exitcode(status)
                with self._askers.pop(pid) as asker, suppress(OSError):
                    asker.sendall(code.to_bytes(CODE, "big", signed=True))
        return len(self._askers) < before

    def _ready(self, end_at: float) -> Sequence[socket.socket | Woken]:
        due = min(self._kill_at.values(), default=None) if self._askers else end_at
        seconds = None if due is None else max(0.0, due - time.monotonic())
        ends: list[socket.socket | Woken] = [self._woken, self._door]
        ends += [asker for asker in self._askers.values() if asker.fileno() >= 0]
        return select.select(ends, [], [], seconds)[0]

    def _fork(self, asker: socket.socket) -> ForkRequest | None:
        """Answer one who asks; return the request in the fork, and None in this process."""
        try:
            request = received(asker)
        except EOFError:  # one that was killed, or a program that looks who lives
            asker.close()
            return None
        except (OSError, ValueError) as error:
            print(f"nectar: a process was not started: {error}", file=sys.stderr)
            asker.close()
            return None
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._leave(asker)
            return request
        request.close()
        self._askers[pid] = asker
        with suppress(OSError):  # its end is seen at the socket
            asker.sendall(pid.to_bytes(PID, "big"))
        return None

    def _leave(self, asker: socket.socket) -> None:
        """Be no server any more, in a fork."""
        self._woken.leave()
        for end in (self._door, asker, *self._askers.values()):
            end.close()

    def _end_fork_of(self, asker: socket.socket) -> None:
        """End the fork of one who is gone: that is all a socket can say now."""
        (pid,) = (number for number, own in self._askers.items() if own is asker)
        asker.close()
        os.kill(pid, signal.SIGTERM)  # its number is its own until it is waited for
        self._kill_at[pid] = time.monotonic() + self._grace

    def _kill_overdue(self) -> None:
        for pid, due in list(self._kill_at.items()):
            if time.monotonic() >= due:
                del self._kill_at[pid]
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _heard(number: int, frame: FrameType | None) -> None:
    """Do nothing: the signal's number is in the wake-up socket."""
