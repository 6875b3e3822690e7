"""A worker of the pool: processes messages as the in-process engine does, one at a time, until its parent ends it.

Called as ``python -m nectar.engines.pool.worker_process PARENT DESCRIPTOR``: the parent's number, and that of this
end of the pipe. First comes a :class:`~nectar.engines.pool.pool.Setup`, then one message's parts at a time; each
answer is a pair of its kind and what it says.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
import warnings
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, TextIO

from nectar.engines import processes
from nectar.engines.pool.pool import Receiver, Sender

if TYPE_CHECKING:
    from nectar.engines.local_grid import LocalGrid
    from nectar.engines.pool.pool import Setup

#: seconds between two reports on how far a site is
_REPORT_EVERY = 1.0

#: seconds that this process has for ending in order
_GRACE = 5


def main(words: list[str]) -> int:
    """Process messages; return the exit code."""
    parent, descriptor = map(int, words)
    try:
        processes.listen(_GRACE)
        processes.end_with(parent, signal.SIGTERM)
        connection = Connection(descriptor)
        try:
            _work(Receiver(connection, keep=True), _Answers(connection))
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except (KeyboardInterrupt, EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the other process wants no more, or is gone
    return 0


def _work(tasks: Receiver, answers: _Answers) -> None:
    setup: Setup = tasks.receive()
    _pass_on_logs(answers, setup)
    try:
        grid, source = _engine(setup)
    except Exception as error:
        answers.send("failed", f"{type(error).__name__}: {error}")
        return
    answers.send("ready", source)
    from common.learning import compute as steps

    with steps.watched(answers.report):
        while True:
            message = grid.create_message(**tasks.receive())
            (reply,) = grid.send_and_receive([message])
            if reply.has_error():
                answers.send("error", (reply.error.code, reply.error.reason))
            else:
                answers.send("reply", reply.content)


def _engine(setup: Setup) -> tuple[LocalGrid, str]:
    """Import what the run needs; return the in-process engine, and the fingerprint of the source."""
    from common.code.fingerprint import source_fingerprint
    from common.code.imports import load as load_path
    from common.config.loading import load
    from common.methods import resolve
    from nectar.engines.flower.app import client_app
    from nectar.engines.local_grid import LocalGrid

    config = load(setup.run_config)
    load_path(resolve(config.method).client)
    return LocalGrid(client_app(), setup.sites, setup.run_config), source_fingerprint()


class _Answers(logging.Handler):
    """The pipe back to the parent: replies, log lines, warnings and progress."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._sender, self._sending = Sender(connection, keep=False), threading.Lock()
        self._reported = time.monotonic()

    def send(self, kind: str, content: object) -> None:
        """Send one answer."""
        with self._sending:
            self._sender.send((kind, content))

    def emit(self, record: logging.LogRecord) -> None:
        """Send a line of the log, with its traceback if it has one."""
        with suppress(OSError):  # the parent is gone
            self.send("log", (record.name, record.levelno, self.format(record)))

    def report(self, where: str, done: int, steps: int) -> None:
        """Report a site's progress from time to time."""
        if time.monotonic() - self._reported > _REPORT_EVERY:
            self._reported = time.monotonic()
            with suppress(OSError):
                self.send("steps", (done, steps))


def _pass_on_logs(to: _Answers, setup: Setup) -> None:
    """Forward this process's log lines and warnings to the parent."""
    root, flowers = logging.getLogger(), logging.getLogger("flwr")
    root.handlers = [to]
    root.setLevel(setup.level)
    flowers.handlers, flowers.propagate = [], True
    flowers.setLevel(setup.flower_level)

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        to.send("warning", (str(message), category.__name__, filename, lineno))

    warnings.showwarning = show


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
