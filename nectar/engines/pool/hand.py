"""One worker as this process sees it: started, given one message at a time, started again when it has died."""

from __future__ import annotations

import builtins
import logging
import os
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Error, Message, RecordDict

from common.learning import steps
from nectar.engines.pool import letters, sheets
from nectar.engines.pool.board import Board
from nectar.engines.pool.letters import Pile, Place
from nectar.engines.pool.line import GRACE, Head, Line

#: Flower's own code for a ClientApp whose process died
CRASHED = 8

_WORKER = "nectar.engines.pool.worker"


class WorkerError(Exception):
    """A worker that is not there, or did not come to be; a sentence."""


@dataclass(frozen=True)
class Job:
    """A message that is to be carried out.

    Parameters
    ----------
    message : Message
        The message.
    position : int
        Which one of those that were put together it is, from 0.
    """

    message: Message
    position: int

    @property
    def node(self) -> int:
        """Whom it is for."""
        return self.message.metadata.dst_node_id


class Hand:
    """A worker's process and the line to it. One thread at a time uses it; any may ``end`` it.

    Parameters
    ----------
    setup : mapping
        What a worker is told first: see ``nectar.engines.pool.worker``.
    board : Board
        What messages share.
    """

    def __init__(self, setup: Mapping[str, Any], board: Board) -> None:
        self._setup, self._board = setup, board
        self._has: set[int] = set()
        self._shown: dict[Any, Any] = {}
        here, there = socket.socketpair()
        with there:
            self._line = Line(here)
            self._process = _started(there.fileno())

    def greet(self) -> None:
        """Wait until the worker has imported and resolved what the run needs.

        Raises
        ------
        WorkerError
            If it cannot.
        """
        try:
            self._line.send(self._setup)
        except OSError:
            raise WorkerError(self._how_it_ended()) from None
        head, _ = self._answer("ready", "failed")
        if "failed" in head:
            raise WorkerError(str(head["failed"]))
        if head["ready"] != self._setup["source"]:
            raise WorkerError("it found other source files than this process has imported")

    def carry_out(self, job: Job) -> RecordDict | Error:
        """Return what the device answers.

        Raises
        ------
        WorkerError
            If the worker died over it.
        """
        self._send(job)
        head, descriptors = self._answer("reply", "error")
        try:
            if "error" in head:
                return Error(code=int(head["error"][0]), reason=str(head["error"][1]))

            def take(place: Place) -> bytes:
                return sheets.read(descriptors[0], *place[1:])

            return letters.read(head["reply"], take)
        finally:
            _close(descriptors)

    def end(self) -> None:
        """Let the worker know that nothing more is asked of it: whatever it is at, it ends within ``GRACE`` seconds."""
        self._line.end()

    def join(self) -> None:
        """Wait for its end, and kill it when it takes longer than it may."""
        try:
            self._process.wait(GRACE + 1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._line.close()

    def _send(self, job: Job) -> None:
        metadata, own = job.message.metadata, Pile()
        with self._board.lock:  # a sheet must not be closed between two lines here
            content = letters.written(
                job.message.content, lambda blob: self._board.place_of(blob) or own.place(blob)
            )
            there = self._board.sheets
            new = [number for number in there if number not in self._has]
            head: Head = {
                "node": metadata.dst_node_id,
                "type": metadata.message_type,
                "group": metadata.group_id,
                "ttl": metadata.ttl,
                "content": content,
                "sheets": list(there),
                "new": new,
            }
            mine, _ = sheets.write(own.blobs)
            try:
                self._line.send(head, [mine, *(there[number] for number in new)])
            except OSError:
                raise WorkerError(self._how_it_ended()) from None
            finally:
                os.close(mine)
            self._has = set(there)

    def _answer(self, *kinds: str) -> tuple[Head, list[int]]:
        """Wait for a frame of one of ``kinds``, and pass on what the worker logs until then."""
        while (frame := self._line.receive()) is not None:
            head, descriptors = frame
            if any(kind in head for kind in kinds):
                return head, descriptors
            _close(descriptors)
            self._pass_on(head)
        raise WorkerError(self._how_it_ended())

    def _pass_on(self, head: Head) -> None:
        if "log" in head:
            name, level, text = head["log"]
            logging.getLogger(name).log(level, "%s", text)
        elif "warning" in head:
            text, category, filename, line = head["warning"]
            kind = getattr(builtins, category, UserWarning)
            warnings.warn_explicit(text, kind, filename, line, registry=self._shown)
        elif "steps" in head:
            steps.tell(f"worker {self._process.pid}", *head["steps"])

    def _how_it_ended(self) -> str:
        """Say how the worker ended, whose end of the line is closed."""
        try:
            code = self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        if code >= 0:
            return f"it ended with exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = ", as the system does when memory is short" if name == "SIGKILL" else ""
        return f"it was ended by {name}{hint}"


def _started(end: int) -> subprocess.Popen[bytes]:
    """Start a worker that has the file descriptor ``end`` as its end of the line."""
    # It imports what this process does, wherever it was started.
    path = os.pathsep.join(str(Path(entry or ".").absolute()) for entry in sys.path)
    options = [f"-W{option}" for option in sys.warnoptions]
    return subprocess.Popen(
        [sys.executable, "-P", *options, "-m", _WORKER, str(end)],
        env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        pass_fds=(end,),
        # A session of its own: Ctrl-C goes to this process alone, which ends things in order.
        start_new_session=True,
    )


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
