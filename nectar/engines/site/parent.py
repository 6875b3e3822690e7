"""The process that ClientApps are forks of: it starts the SuperNode, answers stubs, and ends when that has ended.

It has one thread, so that a fork is a whole process. The SuperNode leads a process group, which its SuperExec, the
stubs and the forks share: a terminal's Ctrl-C reaches this process alone, which passes it on once, and what is left
of the group at the end is found and ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType

from nectar.engines.site.request import Request, received

#: seconds that a ClientApp, what is left of the SuperNode's group, and the SuperNode have to end before they are killed
_GRACE, _GROUP_GRACE, _SUPERNODE_GRACE = 5.0, 5.0, 30.0

#: what is passed on, and as what: a SuperNode does not listen to SIGHUP
_PASSED_ON = {
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGINT: signal.SIGINT,
    signal.SIGHUP: signal.SIGTERM,
}

_PR_SET_PDEATHSIG = 1


class Parent:
    """Serves one SuperNode.

    Parameters
    ----------
    listener : socket.socket
        Where stubs connect.
    command : sequence of str
        The SuperNode.
    environment : mapping of str to str
        Its environment.

    Attributes
    ----------
    told_to_end : bool
        Whether a signal was passed on to the SuperNode.
    """

    def __init__(
        self, listener: socket.socket, command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self._listener = listener
        self._woken, wake = socket.socketpair()
        self._wake = wake
        for end in (self._woken, wake):
            end.setblocking(False)
        self._stubs: dict[int, socket.socket] = {}
        self._kill_at: dict[int, float] = {}
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _heard)
        self._status: int | None = None
        self.told_to_end = False
        self._supernode = _start(command, environment)
        for number in _PASSED_ON:
            # what the caller had ignored (nohup, a shell's background job) stays ignored
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._pass_on)

    def serve(self) -> Request | int:
        """Fork a ClientApp for each stub until the SuperNode has ended.

        Returns
        -------
        Request or int
            In a fork, what it is to run. In this process, at the end, the SuperNode's exit code, 128 + n if signal n
            ended it.
        """
        while self._status is None:
            for end in self._ready():
                if end is self._woken:
                    self._woken.recv(4096)
                elif end is self._listener:
                    request = self._fork()
                    if request is not None:
                        return request
                else:
                    self._end_of_stub(end)
            self._reap()
            self._kill_overdue()
        self._clear_group()
        return self._status

    def leave_signals(self) -> None:
        """Let a signal end this process, now that there is no SuperNode to pass it on to."""
        for number in _PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda number, frame: sys.exit(128 + number))

    def end(self) -> None:
        """End the SuperNode and what it started, without having served."""
        os.kill(self._supernode, signal.SIGTERM)
        self._clear_group()

    def _ready(self) -> list[socket.socket]:
        due = min(self._kill_at.values(), default=None)
        seconds = None if due is None else max(0.0, due - time.monotonic())
        ends = [self._woken, self._listener, *self._stubs.values()]
        return select.select(ends, [], [], seconds)[0]

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """Pass a signal on to the SuperNode at once, also while this process still imports."""
        self.told_to_end = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._supernode, _PASSED_ON[signal.Signals(number)])
        self._kill_at.setdefault(self._supernode, time.monotonic() + _SUPERNODE_GRACE)

    def _fork(self) -> Request | None:
        """Answer a stub; return the request in the fork, and None in this process."""
        stub, _ = self._listener.accept()
        try:
            request = received(stub)
        except EOFError:  # a stub that was killed, or a program that looks who lives
            stub.close()
            return None
        except (OSError, ValueError) as error:
            print(f"nectar site: a ClientApp was not started: {error}", file=sys.stderr)
            stub.close()
            return None
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._become_child(stub)
            return request
        request.close()
        self._stubs[pid] = stub
        return None

    def _become_child(self, stub: socket.socket) -> None:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, *_PASSED_ON):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        for end in (self._woken, self._wake, self._listener, stub, *self._stubs.values()):
            end.close()
        os.setpgid(0, self._supernode)

    def _end_of_stub(self, stub: socket.socket) -> None:
        """End the ClientApp of a stub that is gone: that is all a stub can say now."""
        (pid,) = (number for number, own in self._stubs.items() if own is stub)
        self._stubs.pop(pid).close()
        os.kill(pid, signal.SIGTERM)
        self._kill_at[pid] = time.monotonic() + _GRACE

    def _kill_overdue(self) -> None:
        for pid, due in self._kill_at.items():
            if time.monotonic() >= due:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                self._kill_at[pid] = due + _GRACE

    def _reap(self) -> None:
        """Pass the exit codes of ClientApps that have ended on to their stubs; notice the SuperNode's end."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._kill_at.pop(pid, None)
            code = os.waitstatus_to_exitcode(status)
            code = code if code >= 0 else 128 - code
            if pid == self._supernode:
                self._status = code
            elif (stub := self._stubs.pop(pid, None)) is not None:
                with stub, contextlib.suppress(OSError):
                    stub.send(bytes([code]))

    def _clear_group(self) -> None:
        """End what the SuperNode has left: its SuperExec, stubs, ClientApps."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            until = time.monotonic() + _GROUP_GRACE
            signalled = False
            while time.monotonic() < until:
                try:
                    os.killpg(self._supernode, 0 if signalled else number)
                except ProcessLookupError:
                    return
                signalled = True
                time.sleep(0.02)
                self._reap()


def _heard(number: int, frame: FrameType | None) -> None:
    """Do nothing: the signal's number lies in the wake-up socket."""


def _start(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Start the SuperNode as the leader of a process group, ended with this process (on Linux); return its number."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    parent = os.getpid()
    pid = os.fork()
    if pid:
        with contextlib.suppress(OSError):  # the child does it, too: whoever comes first
            os.setpgid(pid, pid)
        return pid
    try:
        os.setpgid(0, 0)
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() == parent:
            os.execve(command[0], list(command), dict(environment))
    except OSError as error:
        print(f"nectar site: {command[0]} cannot be started: {error}", file=sys.stderr, flush=True)
    os._exit(127)
