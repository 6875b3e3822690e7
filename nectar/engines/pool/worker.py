"""One worker as this process sees it: started, given one message at a time, ended."""

from __future__ import annotations

import builtins
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import Pipe
from typing import Any

from flwr.app import Error, Message, RecordDict

from common.learning import compute as steps
from nectar.engines import processes
from nectar.engines.pool.arrays import Receiver, Sender

#: Flower's own code for a ClientApp whose process died
CRASHED = 8

_PROCESS = "nectar.engines.pool.worker_process"


class WorkerError(Exception):
    """A worker that is not there, or did not come to be; a sentence."""


@dataclass(frozen=True)
class Setup:
    """What a worker is told first: the run, what this process has imported, and which lines of the log are wanted."""

    run_config: Mapping[str, str | int | float | bool]
    sites: int
    source: str
    level: int
    flower_level: int


class Worker:
    """A worker's process and the pipe to it. One thread at a time uses it; any may ``end`` it."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._shown: dict[Any, Any] = {}
        here, theirs = Pipe()
        self._tasks, self._answers = Sender(here, keep=True), Receiver(here, keep=False)
        with theirs:
            command = processes.module_command(_PROCESS, str(theirs.fileno()))
            command[1:1] = [f"-W{option}" for option in sys.warnoptions]
            environment = os.environ | processes.import_path()
            self._process = processes.start(
                command, environment=environment, keep=[theirs.fileno()]
            )

    def greet(self) -> None:
        """Wait until the worker has imported and resolved what the run needs; WorkerError if it cannot."""
        self._send(self._setup)
        kind, said = self._answer("ready", "failed")
        if kind == "failed":
            raise WorkerError(said)
        if said != self._setup.source:
            raise WorkerError("it found other source files than this process has imported")

    def carry_out(self, message: Message) -> RecordDict | Error:
        """Return what the site answers; WorkerError if the worker died over it."""
        to = message.metadata
        self._send(
            {
                "content": message.content,
                "message_type": to.message_type,
                "dst_node_id": to.dst_node_id,
                "group_id": to.group_id,
                "ttl": to.ttl,
            }
        )
        kind, said = self._answer("reply", "error")
        return Error(*said) if kind == "error" else said

    def end(self) -> None:
        """End the process, whatever it is at; returns when it is gone."""
        processes.end(lambda: processes.running([self._process]))

    def _send(self, item: object) -> None:
        try:
            self._tasks.send(item)
        except OSError:
            raise WorkerError(self._how_it_ended()) from None

    def _answer(self, *kinds: str) -> tuple[str, Any]:
        """Wait for an answer of one of ``kinds``, and pass on what the worker logs until then."""
        try:
            while (answer := self._answers.receive())[0] not in kinds:
                self._pass_on(*answer)
            return answer[0], answer[1]
        except (EOFError, OSError):
            raise WorkerError(self._how_it_ended()) from None

    def _pass_on(self, kind: str, said: tuple[Any, ...]) -> None:
        if kind == "log":
            name, level, text = said
            logging.getLogger(name).log(level, "%s", text)
        elif kind == "warning":
            text, category, filename, line = said
            of = getattr(builtins, category, UserWarning)
            warnings.warn_explicit(text, of, filename, line, registry=self._shown)
        elif kind == "steps":
            steps.tell(f"worker {self._process.pid}", *said)

    def _how_it_ended(self) -> str:
        """Say how the worker ended, whose end of the pipe is closed."""
        try:
            code = self._process.wait(processes.STEPS[0][1])
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        return processes.how_it_ended(code)
