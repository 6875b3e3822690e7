"""A pool of workers: assigns messages to them and handles those that die.

Why no executors of processes: multiprocessing's "spawn" runs the user's program again in every worker, where that is a
script without a guard, and before Python 3.14 nothing public ends a worker that is at work. loky's end a worker whose
memory grew, and with it the data of its sites.
"""

from __future__ import annotations

import builtins
import io
import itertools
import logging
import os
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from logging import getLogger
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from flwr.app import Error, Message, RecordDict

from common.learning import compute as steps
from nectar.engines import processes

logger = getLogger("flwr")

#: Flower's own code for a node that is not to be had
_UNAVAILABLE = 5

#: bytes of arrays in replies that were not taken yet, above which workers do not run ahead of the server
_HELD = 256 * 2**20

#: waiting messages among which a worker looks for one whose node it had before
_LOOKED_THROUGH = 64


@dataclass(eq=False)
class _Job:
    """A message, its index among those queued together, and its future reply."""

    message: Message
    position: int
    reply: Future[Message] = field(default_factory=Future)

    @property
    def node(self) -> int:
        """The node that it is for."""
        return self.message.metadata.dst_node_id


class WorkerPool:
    """Workers that process messages in parallel, each with a thread that starts, feeds and restarts it.

    A node goes to the worker that had it last, whose memory holds its data, or to another one if that worker is busy.
    Messages are started in order, and replies should be taken in the same order: if they are large, only a few
    of them wait at a time. If a worker dies, its node loses this one
    message, and the worker is restarted.

    Parameters
    ----------
    report : callable
        Called after each message that was carried out, in a thread of the pool's.
    """

    def __init__(
        self, setup: Setup, size: int, report: Callable[[], object] = lambda: None
    ) -> None:
        self._setup, self._report = setup, report
        self._lock = threading.RLock()  # of all that follows
        self._jobs: dict[str, _Job] = {}
        self._waiting: list[_Job] = []
        self._home: dict[int, int] = {}
        self._busy: set[int] = set()
        self._taken = self._held = 0
        self._workers: dict[int, Worker] = {}
        self._problem, self._closing = "", False
        self._threads = [ThreadPoolExecutor(1) for _ in range(size)]
        self._living = {*range(size)}
        self._started = [self._threads[i].submit(self._start, i) for i in range(size)]

    @property
    def ready(self) -> bool:
        """Whether a worker can take messages; others may still be starting."""
        return any(start.done() and start.result() for start in self._started) and not self.problem

    @property
    def problem(self) -> str:
        """Why there are no workers, in a clause; empty while there are."""
        return "" if self._living else self._problem

    def wait(self) -> None:
        """Wait until a worker is ready, or none can start."""
        any(start.result() for start in as_completed(self._started))

    def put(self, messages: Sequence[Message]) -> None:
        """Queue ``messages``, replacing earlier ones that no worker has started."""
        with self._lock:
            for dropped in self._waiting:
                dropped.reply.cancel()
            jobs = [_Job(message, position) for position, message in enumerate(messages)]
            self._jobs = {job.message.metadata.message_id: job for job in jobs}
            self._taken = self._held = 0
            self._waiting = [job for job in jobs if job.node not in self._busy]
            for job in jobs:
                if job.node in self._busy:
                    reason = "this site is still working on the previous message"
                    self._settle(job, Error(code=_UNAVAILABLE, reason=reason))
            self._go_on()

    def take(self, message_id: str) -> Message | None:
        """Wait for the reply to a message and return it, once; None for one that was not put, or was dropped."""
        try:
            reply = self._jobs[message_id].reply.result()
        except (KeyError, CancelledError):
            return None
        with self._lock:
            if self._jobs.pop(message_id, None) is None:
                return None
            was_full = self._held >= _HELD
            self._taken += 1
            self._held -= _size(reply)
            if was_full:
                self._go_on()
        return reply

    def close(self) -> None:
        """End all workers and wait until their processes have exited."""
        with self._lock:
            self._closing = True
            workers = [*self._workers.values()]
        with ThreadPoolExecutor(len(self._threads)) as side_by_side:
            list(side_by_side.map(lambda worker: worker.end(), workers))
        for thread in self._threads:
            thread.shutdown()

    def _go_on(self) -> None:
        """Wake the workers; if none is left, answer all queued messages with an error."""
        for index in self._living:
            self._threads[index].submit(self._serve, index)
        while self._waiting and not self._living:
            self._settle(self._waiting.pop(0), Error(code=CRASHED, reason=self._problem))

    # ---- each worker's thread -------------------------------------------------------------------------

    def _start(self, index: int) -> bool:
        """Start a worker, and return whether it is ready; if not, its thread ends."""
        worker: Worker | None = None
        try:
            with self._lock:
                if self._closing:
                    raise RuntimeError("the run is over")
                worker = self._workers[index] = Worker(self._setup, index)
            worker.greet()
        except Exception as error:
            if worker is not None:
                worker.end()
            with self._lock:
                self._problem = str(error)
                self._living.discard(index)
                if not self._closing:
                    self._go_on()
            return False
        return True

    def _serve(self, index: int) -> None:
        """Give a worker messages until none are left for it, and restart it if it dies."""
        while (job := self._next(index)) is not None:
            worker = self._workers[index]
            try:
                self._done(job, worker.carry_out(job.message))
            except Exception as error:
                # said before the reply: what waits for that may be all that is left of the run
                if not self._closing:
                    logger.warning("a worker process died (%s): starting another one", error)
                self._done(job, Error(code=CRASHED, reason=f"its process died: {error}"))
                worker.end()
                self._start(index)

    def _next(self, index: int) -> _Job | None:
        """Take the first waiting message of a node that the worker had, else of a new node, else of any."""
        with self._lock:
            if self._closing or index not in self._living:
                return None
            near = self._waiting[:_LOOKED_THROUGH]
            if self._held >= _HELD:
                within = self._taken + 2 * len(self._threads)
                near = [job for job in near if job.position < within]
            if not near:
                return None
            homes = [self._home.get(job.node) for job in near]
            at = next((homes.index(home) for home in (index, None) if home in homes), 0)
            job = self._waiting.pop(at)
            self._busy.add(job.node)
            self._home[job.node] = index
            return job

    def _done(self, job: _Job, answer: RecordDict | Error) -> None:
        with self._lock:
            self._busy.discard(job.node)
            if self._jobs.get(job.message.metadata.message_id) is job:  # else it was dropped
                self._settle(job, answer)

    def _settle(self, job: _Job, answer: RecordDict | Error) -> None:
        reply = Message(answer, reply_to=job.message)
        self._held += _size(reply)
        job.reply.set_result(reply)
        self._report()


def _size(reply: Message) -> int:
    """Return the bytes of a reply's arrays."""
    if not reply.has_content():
        return 0
    records = reply.content.array_records.values()
    return sum(len(array.data) for record in records for array in record.values())


# ---- worker --------------------------------------------------------------------------------------
# One worker as this process sees it: started, given one message at a time, ended.

#: Flower's own code for a ClientApp whose process died
CRASHED = 8

_PROCESS = "nectar.engines.pool.worker_process"


class WorkerError(Exception):
    """A worker died or could not be started; the message is the reason."""


@dataclass(frozen=True)
class Setup:
    """The first message to a worker: the run, this process's imports, and the log level."""

    run_config: Mapping[str, str | int | float | bool]
    device: str
    sites: int
    source: str
    level: int
    flower_level: int


class Worker:
    """A worker's process and the pipe to it. One thread at a time uses it; any may ``end`` it."""

    def __init__(self, setup: Setup, number: int = 0) -> None:
        self._setup = setup
        self._shown: dict[Any, Any] = {}
        ours, theirs = Pipe()
        self._tasks, self._answers = Sender(ours, keep=True), Receiver(ours, keep=False)
        with theirs:
            command = processes.module_command(_PROCESS, str(theirs.fileno()))
            command[1:1] = [f"-W{option}" for option in sys.warnoptions]
            environment = (
                os.environ | processes.import_path() | steps.gpu_alone(setup.device, number)
            )
            self._process = processes.start(
                command, environment=environment, keep=[theirs.fileno()]
            )

    def greet(self) -> None:
        """Wait until the worker has imported and resolved what the run needs; WorkerError if it cannot."""
        self._send(self._setup)
        kind, message = self._answer("ready", "failed")
        if kind == "failed":
            raise WorkerError(message)
        if message != self._setup.source:
            raise WorkerError("its source files differ from those that this process has imported")

    def carry_out(self, message: Message) -> RecordDict | Error:
        """Return the site's reply; WorkerError if the worker died meanwhile."""
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
        kind, answer = self._answer("reply", "error")
        return Error(*answer) if kind == "error" else answer

    def end(self) -> None:
        """End the process, even if it is working, and wait until it has exited."""
        processes.end(lambda: [] if self._process.poll() is not None else [self._process])

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

    def _pass_on(self, kind: str, content: tuple[Any, ...]) -> None:
        if kind == "log":
            name, level, text = content
            logging.getLogger(name).log(level, "%s", text)
        elif kind == "warning":
            text, category, filename, line = content
            of = getattr(builtins, category, UserWarning)
            warnings.warn_explicit(text, of, filename, line, registry=self._shown)
        elif kind == "steps":
            steps.report_progress(f"worker {self._process.pid}", *content)

    def _how_it_ended(self) -> str:
        """Return why the worker ended, after it closed its end of the pipe."""
        try:
            code = self._process.wait(processes.STEPS[0][1])
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        return processes.how_it_ended(code)


# ---- arrays --------------------------------------------------------------------------------------
# Messages to a worker and back: pickled, with the bytes of their arrays after them, which are copied nowhere.
#
# A round sends the same weights to many sites. So what the message before had as well is not sent again: a worker
# reads a round's weights once, and every site in it finds the same object, which it decodes once. Only a process and
# its own child use this pipe: nothing that came from outside is ever unpickled.

_LEAST = 512
"""Bytes from which on they are sent after the message, not in it."""


class Sender(pickle.Pickler):
    """One end of a pipe; it replaces large bytes by a number, and knows them by their identity while they are kept.

    Parameters
    ----------
    keep : bool
        Whether both ends keep a message's bytes until the next one; the receiver says the same.
    """

    def __init__(self, connection: Connection, *, keep: bool) -> None:
        self._file = io.BytesIO()
        super().__init__(self._file, pickle.HIGHEST_PROTOCOL)
        self._connection, self._keep = connection, keep
        self._last: dict[int, tuple[int, bytes]] = {}
        self._used: dict[int, tuple[int, bytes]] = {}
        self._new: list[bytes] = []
        self._numbers = itertools.count()

    def send(self, item: object) -> None:
        """Send ``item``; OSError if the other end is gone."""
        self._file.seek(0)
        self._file.truncate()
        self._used, self._new = {}, []
        try:
            self.dump(item)
        finally:
            self.clear_memo()
        self._last = self._used if self._keep else {}
        for part in (self._file.getvalue(), *self._new):
            self._connection.send_bytes(part)
        self._new = []

    def persistent_id(self, value: object) -> int | None:
        """Return the number of bytes that follow the message, or were sent with the one before; None if it has none."""
        if type(value) is not bytes or len(value) < _LEAST:
            return None
        known = self._used.get(id(value)) or self._last.get(id(value))
        if known is None:
            known = next(self._numbers), value
            self._new.append(value)
        self._used[id(value)] = known
        return known[0]


class Receiver:
    """The other end.

    Parameters
    ----------
    keep : bool
        As the sender's.
    """

    def __init__(self, connection: Connection, *, keep: bool) -> None:
        self._connection, self._keep = connection, keep
        self._last: dict[int, bytes] = {}

    def receive(self) -> Any:
        """Wait for the next item and return it; EOFError if the other end is closed."""
        unpickler = _Unpickler(io.BytesIO(self._connection.recv_bytes()))
        unpickler.connection, unpickler.last, unpickler.used = self._connection, self._last, {}
        item = unpickler.load()
        self._last = unpickler.used if self._keep else {}
        return item


class _Unpickler(pickle.Unpickler):
    """Puts the bytes back; new ones follow the message in the order of their numbers."""

    connection: Connection
    last: Mapping[int, bytes]
    used: dict[int, bytes]

    def persistent_load(self, number: int) -> bytes:
        if number not in self.used:
            known = self.last.get(number)
            self.used[number] = self.connection.recv_bytes() if known is None else known
        return self.used[number]
