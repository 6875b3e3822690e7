"""A worker of the pool: carries out messages as the in-process engine does, one at a time, until its line ends.

Called as ``python -m nectar.engines.pool.worker DESCRIPTOR``, the number of its end of the line. The first frame
is the setup:
``run-config``, ``clients``, ``source`` (the fingerprint of what the other process has imported), and the level of logs;
each one behind it is a message. It does not outlive the other end of the line.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
import warnings
from contextlib import suppress
from queue import SimpleQueue
from typing import TextIO

from nectar.engines.pool.line import GRACE, Head, Line

_Frame = tuple[Head, list[int]]

#: seconds between two looks whether the other process is still there
_LOOK = 1.0


def main(words: list[str]) -> int:
    """Carry out what comes; return the exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's is ignored
    line = Line(socket.socket(fileno=int(words[0])))
    frames: SimpleQueue[_Frame | None] = SimpleQueue()
    threading.Thread(target=_listen, args=(line, frames), daemon=True).start()
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()
    try:
        first = frames.get()
        if first is not None:
            _pass_on_logs(line, first[0])
            _work(line, first[0], frames)
    except (KeyboardInterrupt, BrokenPipeError, ConnectionResetError):
        pass  # the other process wants no more, or is gone
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return 0


def _listen(line: Line, frames: SimpleQueue[_Frame | None]) -> None:
    """Queue what comes; at the end of the line end this process, in order if it can be interrupted."""
    while (frame := line.receive()) is not None:
        frames.put(frame)
    frames.put(None)
    _end()


def _watch(parent: int) -> None:
    """End this process with its parent also where another one has inherited the other end of the line."""
    while os.getppid() == parent:
        time.sleep(_LOOK)
    _end()


def _end() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    time.sleep(GRACE)
    os._exit(1)


def _work(line: Line, setup: Head, frames: SimpleQueue[_Frame | None]) -> None:
    try:
        bench = _Bench(setup)
    except Exception as error:
        line.send({"failed": f"{type(error).__name__}: {error}"})
        return
    line.send({"ready": bench.source})
    from common.learning import steps

    with steps.watched(_Teller(line)):
        while (frame := frames.get()) is not None:
            bench.carry_out(line, *frame)


class _Bench:
    """What carries out messages: the in-process engine, with a hand on the sheets that messages share."""

    def __init__(self, setup: Head) -> None:
        # Flower and torch take seconds: the line is listened to before.
        from common.code.fingerprint import source_fingerprint
        from common.config.loading import load
        from common.methods import load as load_path
        from common.methods import resolve
        from nectar.engines.flower.app import client_app
        from nectar.engines.local_grid import LocalGrid

        self.source = source_fingerprint()
        config = load(setup["run-config"])
        load_path(resolve(config.method).client)
        self._grid = LocalGrid(client_app(), setup["clients"], setup["run-config"])
        self._sheets: dict[int, int] = {}
        self._read: dict[tuple[int, int, int], bytes] = {}

    def carry_out(self, line: Line, head: Head, descriptors: list[int]) -> None:
        """Carry out one message and send the reply."""
        from nectar.engines.pool import letters, sheets

        own, *others = descriptors
        self._renew(head["sheets"], dict(zip(head["new"], others, strict=True)))
        try:
            content = letters.read(head["content"], lambda place: self._take(place, own))
        finally:
            os.close(own)
        message = self._grid.create_message(
            content, head["type"], head["node"], head["group"], head["ttl"]
        )
        (reply,) = self._grid.pull_messages(self._grid.push_messages([message]))
        if reply.has_error():
            line.send({"error": [reply.error.code, reply.error.reason]})
            return
        pile = letters.Pile()
        written = letters.written(reply.content, pile.place)
        descriptor, _ = sheets.write(pile.blobs)
        try:
            line.send({"reply": written}, [descriptor])
        finally:
            os.close(descriptor)

    def _renew(self, needed: list[int], new: dict[int, int]) -> None:
        """Take in new sheets and let go of those that no message needs any more."""
        self._sheets |= new
        for number in [number for number in self._sheets if number not in needed]:
            os.close(self._sheets.pop(number))
        self._read = {place: blob for place, blob in self._read.items() if place[0] in self._sheets}

    def _take(self, place: tuple[int, int, int], own: int) -> bytes:
        """Return the bytes of a place, of a shared one the same object each time."""
        from nectar.engines.pool import sheets

        sheet, offset, length = place
        if sheet == 0:
            return sheets.read(own, offset, length)
        if place not in self._read:
            self._read[place] = sheets.read(self._sheets[sheet], offset, length)
        return self._read[place]


class _Teller:
    """Tells the other process how far a device is, from time to time."""

    def __init__(self, line: Line) -> None:
        self._line, self._told = line, time.monotonic()

    def __call__(self, where: str, done: int, steps: int) -> None:
        if time.monotonic() - self._told > _LOOK:
            self._told = time.monotonic()
            with suppress(OSError):  # nobody is there to read it
                self._line.send({"steps": [done, steps]})


class _Forwarder(logging.Handler):
    """Sends the log's lines to the other process."""

    def __init__(self, line: Line) -> None:
        super().__init__()
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        """Send a line, with its traceback if it has one."""
        with suppress(OSError):  # nobody is there to read it
            self._line.send({"log": [record.name, record.levelno, self.format(record)]})


def _pass_on_logs(to: Line, setup: Head) -> None:
    """Let what is logged and warned of here be said by the other process."""
    root, flowers = logging.getLogger(), logging.getLogger("flwr")
    root.handlers = [_Forwarder(to)]
    root.setLevel(setup["level"])
    flowers.handlers, flowers.propagate = [], True
    flowers.setLevel(setup["flwr-level"])

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        to.send({"warning": [str(message), category.__name__, filename, lineno]})

    warnings.showwarning = show


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
