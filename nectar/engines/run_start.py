"""Starting the runs of a comparison: each a process of its own, forked from one that has imported what they need."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from nectar.comparison.live_processes import CHILD
from nectar.engines.cores import GRANTED

FORK_SERVER = "nectar.comparison.fork_server"
#: what a fork server is given so that the words of its runs find room in a list of processes
_ROOM = " " * (1 << 15)
_GRACE = 20.0


class Started(Protocol):
    """A run's process, as `subprocess.Popen` has it."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """Return its exit code once it has ended."""

    def send_signal(self, sig: int, /) -> None:
        """Send it a signal if it is there."""


class RunStarter:
    """Starts runs; on Linux as forks of one process for each number of threads, elsewhere one by one.

    Use as a context manager: behind it the fork servers have ended, and what they had forked.
    """

    def __init__(self) -> None:
        self._servers: dict[int, _ForkServer] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in self._servers.values():
            server.close()
        self._servers.clear()

    def start(self, words: Sequence[str], log: Path, *, threads: int, cores: int) -> Started:
        """Start ``nectar run`` with ``words``.

        Parameters
        ----------
        words : sequence of str
            The run's.
        log : Path
            Where all goes that it says.
        threads : int
            With which it computes.
        cores : int
            What it may share out among processes of its own.
        """
        if sys.platform == "linux":
            server = self._servers.get(threads)
            if server is None:
                server = self._servers[threads] = _ForkServer(threads)
            forked = server.fork(["run", *words], log, cores)
            if forked is not None:
                return forked
        return start_alone(words, log, threads=threads, cores=cores)


def start_alone(
    words: Sequence[str], log: Path, *, threads: int, cores: int
) -> subprocess.Popen[bytes]:
    """Start ``nectar run``, as `RunStarter` does, in a process that imports everything itself."""
    with log.open("wb") as file:
        # A session of its own: Ctrl-C goes to the comparison alone, which ends things in order.
        return subprocess.Popen(
            [sys.executable, "-P", "-m", CHILD, str(os.getpid()), "run", *words],
            env=_environment(threads) | {GRANTED: str(cores)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _environment(threads: int) -> dict[str, str]:
    # The child imports what this process does, wherever it was started.
    path = os.pathsep.join(str(Path(entry or ".").absolute()) for entry in sys.path)
    own = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "PYTHONPATH": path}
    return os.environ | own


class _ForkServer:
    """This end of a fork server."""

    def __init__(self, threads: int) -> None:
        self._connection, theirs = Pipe()
        self._codes: dict[int, int] = {}
        self._begun: int | None = None
        try:
            place = str(theirs.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", FORK_SERVER, str(os.getpid()), place, _ROOM],
                env=_environment(threads),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # what keeps it from working is told by the run that starts alone
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        finally:
            theirs.close()

    def fork(self, words: Sequence[str], log: Path, cores: int) -> _Forked | None:
        """Have a run forked; None if the server is gone."""
        environment = {GRANTED: str(cores)}
        request = {"words": [*words], "log": str(log.absolute()), "environment": environment}
        try:
            self._connection.send_bytes(json.dumps(request).encode())
            while self._begun is None:
                self._take()
        except (EOFError, OSError):
            return None
        pid, self._begun = self._begun, None
        return _Forked(self, pid)

    def code(self, pid: int) -> int | None:
        """Return the exit code of a run that has ended; what a lost server's runs have is that of a kill."""
        try:
            while self._connection.poll():
                self._take()
        except (EOFError, OSError):
            self._codes.setdefault(pid, -signal.SIGKILL)
        return self._codes.get(pid)

    def _take(self) -> None:
        said = json.loads(self._connection.recv_bytes())
        if "begun" in said:
            self._begun = said["begun"]
        else:
            self._codes[said["ended"]] = said["code"]

    def close(self) -> None:
        """End it, and with it what it has forked."""
        self._connection.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE)
        self._process.kill()
        self._process.wait()


class _Forked:
    """A run that a fork server has forked, whose child it is: this process can only ask and send signals."""

    def __init__(self, server: _ForkServer, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server

    def poll(self) -> int | None:
        """Return its exit code once it has ended."""
        if self.returncode is None:
            self.returncode = self._server.code(self.pid)
        return self.returncode

    def send_signal(self, sig: int, /) -> None:
        """Send it a signal if it is there."""
        # Its number is its own until its parent has waited for it, which `poll` tells.
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, sig)
