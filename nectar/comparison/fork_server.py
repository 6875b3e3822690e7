"""A process that has imported what a run needs, once, and forks a comparison's runs: nothing runs in itself.

Called as ``python -m nectar.comparison.fork_server PARENT SOCKET ROOM``. Over the socket, whose number it inherits,
comes for each run a socket to ask at. When the other end closes, it ends, and so does what it forked.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

from nectar.comparison import run_process
from nectar.comparison.live_processes import CHILD
from nectar.comparison.run_start import GRACE
from nectar.engines import processes
from nectar.engines.forks.request import Request
from nectar.engines.forks.server import ForkServer

SHOWN = ("python", "-P", "-m", CHILD)
"""How a run begins in a list of processes, forked or not."""

#: of proc(5): where a process's own arguments lie
_ARGUMENTS = slice(47, 49)


def main(words: list[str]) -> int:
    """Serve until the comparison is gone; in a fork, carry out its run. Return the exit code."""
    parent, number, _ = words
    processes.end_with(int(parent))
    door = socket.socket(fileno=int(number))
    _import()
    server = os.getpid()
    request = ForkServer(door, lambda: _next(door), GRACE).serve()
    return 0 if request is None else carry_out(server, request)


def _next(door: socket.socket) -> socket.socket | None:
    _, files, _, _ = socket.recv_fds(door, 1, 1)
    return socket.socket(fileno=files[0]) if files else None


def _import() -> None:
    """Import what every run needs, and read the source that its record states; no thread may begin here."""
    import server_app.app
    from common.config.code_fingerprint import code_fingerprint
    from common.config.loading import load
    from nectar.engines.flower.app import client_app

    assert server_app.app
    client_app()
    code_fingerprint(load({}))


def carry_out(server: int, request: Request) -> int:
    """Be the run, in a session of its own.

    ``server`` is the parent's number as it knew it itself: one that dies at once has left another parent behind.
    """
    os.setsid()
    request.words.insert(0, str(server))
    request.put_on(run_process.__file__)
    with suppress(OSError, ValueError):  # no /proc
        _show((*SHOWN, *request.words))
    return run_process.main(request.words)


def _show(words: tuple[str, ...]) -> None:
    """Write ``words`` where lists of processes read a process's arguments, its own memory, as far as there is room."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = (int(field) for field in (["", "", *fields])[_ARGUMENTS])
    text = "\0".join(words).encode()[: end - start - 1]
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
