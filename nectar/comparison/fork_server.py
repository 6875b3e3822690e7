"""A process that has imported what a run needs, once, and forks a comparison's runs: nothing runs in itself.

Called as ``python -m nectar.comparison.fork_server PARENT SOCKET ROOM``. Over the socket, whose number it inherits,
come requests of JSON, `{"words": [...], "log": ..., "environment": {...}}`, each answered by `{"begun": PID}`, and,
when that run has ended, by `{"ended": PID, "code": ...}`. When the other end closes, it ends, and so does what it
forked.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from nectar.comparison import run_process

SHOWN = ("python", "-P", "-m", "nectar.comparison.run_process")
"""How a run begins in a list of processes, forked or not."""
_LOOK = 0.1
#: of proc(5): where a process's own arguments lie
_ARGUMENTS = slice(47, 49)


def main(words: list[str]) -> int:
    """Serve until the comparison is gone; in a fork, carry out its run. Return the exit code."""
    parent, socket, _ = words
    run_process.end_with(int(parent))
    connection = Connection(int(socket))
    _import()
    server = os.getpid()
    children: set[int] = set()
    while True:
        try:
            request = json.loads(connection.recv_bytes()) if connection.poll(_LOOK) else None
        except EOFError:
            return 0
        if request is not None:
            child = os.fork()
            if not child:
                connection.close()
                os.environ |= request["environment"]
                return _carry_out(server, request["words"], Path(request["log"]))
            children.add(child)
            connection.send_bytes(json.dumps({"begun": child}).encode())
        for child in list(children):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                children.remove(child)
                code = os.waitstatus_to_exitcode(status)
                connection.send_bytes(json.dumps({"ended": child, "code": code}).encode())


def _import() -> None:
    """Import what every run needs, and read the source that its record states; no thread may begin here."""
    import server_app.app
    from common.code.code_fingerprint import code_fingerprint
    from common.config.loading import load
    from nectar.engines.flower.app import client_app

    assert server_app.app
    client_app()
    code_fingerprint(load({}))


def _carry_out(server: int, words: list[str], log: Path) -> int:
    """Be the run: a session of its own, and a log in the place of what the server writes to.

    ``server`` is the parent's number as it knew it itself: one that dies at once has left another parent behind.
    """
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    to = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for source, target in ((nothing, 0), (to, 1), (to, 2)):
        os.dup2(source, target)
    own = [str(server), *words]
    sys.argv = [run_process.__file__, *own]
    with suppress(OSError, ValueError):  # no /proc
        _show((*SHOWN, *own))
    return run_process.main(own)


def _show(words: tuple[str, ...]) -> None:
    """Write ``words`` where lists of processes read a process's arguments, its own memory, as far as there is room."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = (int(field) for field in (["", "", *fields])[_ARGUMENTS])
    text = "\0".join(words).encode()[: end - start - 1]
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
