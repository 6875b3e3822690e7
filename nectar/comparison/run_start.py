"""Starting the runs of a comparison: each a process of its own, forked from one that has imported what they need."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Protocol

from nectar.comparison.live_processes import CHILD
from nectar.engines import processes
from nectar.engines.cores import GRANTED, available_cores
from nectar.engines.forks.stub import CODE, PID, hand_over

FORK_SERVER = "nectar.comparison.fork_server"

#: seconds that a run has for ending in order
GRACE = 20.0

#: what a fork server is given so that the words of its runs find room in a list of processes
_ROOM = " " * (1 << 15)


class Started(Protocol):
    """A run's process, as `subprocess.Popen` has it."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """Return its exit code once it has ended."""

    def send_signal(self, sig: int, /) -> None:
        """Send it a signal if it is there."""


class RunStarter(ExitStack):
    """Starts runs; on Linux as forks of one process for each number of threads, elsewhere one by one.

    Use as a context manager: after it the fork servers have ended, and what they had forked.
    """

    #: whether a record that broke off goes on where it was
    continues = True

    def __init__(self) -> None:
        super().__init__()
        self._servers: dict[int, _ForkServer] = {}

    def jobs(self, cores: int, gpu: bool) -> int:
        """Return how many runs of ``cores`` cores this machine carries at a time; on a GPU one."""
        return 1 if gpu else max(1, available_cores() // cores)

    def start(
        self, words: Sequence[str], log: Path, *, threads: int, cores: int, gpu: bool = False
    ) -> Started:
        """Start ``nectar run`` with ``words``.

        Parameters
        ----------
        cores : int
            What it may share out among processes of its own.
        """
        if sys.platform == "linux":
            server = self._servers.get(threads)
            if server is None:
                server = self._servers[threads] = _ForkServer(threads)
                self.callback(server.close)
            with suppress(OSError, EOFError):  # the server is gone
                return server.fork(["run", *words], log, _environment(threads, cores))
        return start_alone(words, log, threads=threads, cores=cores)


def start_alone(
    words: Sequence[str], log: Path, *, threads: int, cores: int
) -> subprocess.Popen[bytes]:
    """Start ``nectar run``, as `RunStarter` does, in a process that imports everything itself."""
    command = processes.module_command(CHILD, "run", *words)
    environment = _environment(threads, cores)
    with log.open("wb") as file:
        return processes.start(
            command, environment=environment, output=file, errors=subprocess.STDOUT
        )


def _environment(threads: int, cores: int) -> dict[str, str]:
    own = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    return os.environ | processes.import_path() | own | {GRANTED: str(cores)}


class _ForkServer:
    """The end of a fork server that asks."""

    def __init__(self, threads: int) -> None:
        self._door, theirs = socket.socketpair()
        with theirs:
            self._process = processes.start(
                processes.module_command(FORK_SERVER, str(theirs.fileno()), _ROOM),
                environment=_environment(threads, 1),
                output=subprocess.DEVNULL,
                errors=subprocess.DEVNULL,  # what keeps it from working is told by the run that starts alone
                keep=[theirs.fileno()],
            )

    def fork(self, words: Sequence[str], log: Path, environment: dict[str, str]) -> _Forked:
        """Have a run forked; OSError, EOFError if the server is gone."""
        here, there = socket.socketpair()
        with there:
            socket.send_fds(self._door, [b"\0"], [there.fileno()])
        variables = {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
        with Path(os.devnull).open("rb") as nothing, log.open("wb") as file:
            files = nothing.fileno(), file.fileno(), file.fileno()
            hand_over(here, [*map(os.fsencode, words)], os.fsencode(Path.cwd()), variables, files)
        pid = here.recv(PID, socket.MSG_WAITALL)
        if len(pid) < PID:
            raise EOFError
        return _Forked(here, int.from_bytes(pid, "big"))

    def close(self) -> None:
        """End it, and with it what it has forked."""
        self._door.close()
        processes.end(lambda: processes.running([self._process]))


class _Forked:
    """A run that a fork server has forked, whose child it is: this process can only ask and send signals."""

    def __init__(self, server: socket.socket, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server

    def poll(self) -> int | None:
        """Return its exit code once it has ended; where its server is lost, that of a kill."""
        if self.returncode is None and select.select([self._server], [], [], 0)[0]:
            code = self._server.recv(CODE, socket.MSG_WAITALL)
            self.returncode = int.from_bytes(code, "big", signed=True) if code else -signal.SIGKILL
            self._server.close()
        return self.returncode

    def send_signal(self, sig: int, /) -> None:
        """Send it a signal if it is there."""
        # Its number is its own until its parent has waited for it, which `poll` tells.
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, sig)
