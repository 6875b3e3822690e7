"""The workers together: who carries out which message, and what comes of it where one of them dies."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from logging import getLogger
from typing import Any

from flwr.app import Error, Message, RecordDict

from nectar.engines.pool.board import Board
from nectar.engines.pool.hand import CRASHED, Hand, Job, WorkerError
from nectar.engines.pool.letters import blobs_of

logger = getLogger("flwr")

#: Flower's own code for a node that is not to be had
_UNAVAILABLE = 5

#: bytes of arrays in replies that nobody has taken yet, above which workers do not run ahead of the server
_HELD = 256 * 2**20

#: waiting messages among which a worker looks for one whose node it had before
_LOOKED_THROUGH = 64

Progress = Callable[[int, int], None]


class Crew:
    """Workers that carry out messages side by side.

    A node goes to the worker that had it last, whose memory holds its data, and to another one where that has no time.
    Messages are begun in their order, in which their replies are best taken: where these are large, no more of them
    wait here than some, however many messages there are. A worker that dies costs the node that it was at this one
    message, and is started again.

    Parameters
    ----------
    setup : mapping
        What each worker is told first: see ``nectar.engines.pool.worker``.
    processes : int
        How many there are.
    progress : callable, optional
        Told (messages carried out, messages put together) after each one, in a thread of the crew's.
    """

    def __init__(
        self, setup: Mapping[str, Any], processes: int, progress: Progress | None = None
    ) -> None:
        self._setup, self._progress, self._processes = setup, progress, processes
        self._board = Board()
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._home: dict[int, int] = {}
        self._busy: set[int] = set()
        self._expected: set[str] = set()
        self._replies: dict[str, Message] = {}
        self._put = self._taken = self._held = 0
        self._hands: dict[int, Hand] = {}
        self._problem = ""
        self._living, self._ready, self._closing = processes, 0, False
        self._keepers = [
            threading.Thread(target=self._keep, args=(i,), daemon=True) for i in range(processes)
        ]
        for keeper in self._keepers:
            keeper.start()

    @property
    def ready(self) -> bool:
        """Whether there is a worker that can be given a message; others join it when they have started."""
        return self._ready > 0

    @property
    def problem(self) -> str:
        """Why there are no workers, in a clause; empty while there are."""
        return "" if self._living else self._problem

    def wait(self) -> None:
        """Wait until there is a worker, or nobody is left to become one."""
        with self._changed:
            self._changed.wait_for(lambda: self.ready or not self._living)

    def put(self, messages: Sequence[Message]) -> None:
        """Have ``messages`` carried out; those put earlier that nobody has begun are dropped."""
        self._board.pin([message.content for message in messages])
        with self._changed:
            self._waiting.clear()
            self._replies.clear()
            self._expected = {message.metadata.message_id for message in messages}
            self._put, self._taken, self._held = len(messages), 0, 0
            for position, message in enumerate(messages):
                self._enqueue(Job(message, position))
            self._changed.notify_all()

    def take(self, message_id: str) -> Message | None:
        """Wait for the reply to a message and return it, once; None for one that was not put, or was dropped."""
        with self._changed:
            self._changed.wait_for(
                lambda: message_id in self._replies or message_id not in self._expected
            )
            reply = self._replies.pop(message_id, None)
            if reply is not None:
                self._taken += 1
                self._held -= _size(reply)
                self._changed.notify_all()
            return reply

    def close(self) -> None:
        """End all workers; returns when their processes are gone."""
        with self._changed:
            self._closing = True
            hands = list(self._hands.values())
            for hand in hands:
                hand.end()
            self._changed.notify_all()
        for hand in hands:
            hand.join()
        for keeper in self._keepers:
            keeper.join()
        self._board.clear()

    def _enqueue(self, job: Job) -> None:
        if job.node in self._busy:
            reason = "this device is still at work on what it was asked before"
            self._settle(job, Error(code=_UNAVAILABLE, reason=reason))
        elif not self._living:
            self._settle(job, Error(code=CRASHED, reason=self._problem))
        else:
            self._waiting.append(job)

    # ---- each worker's thread -------------------------------------------------------------------------

    def _keep(self, index: int) -> None:
        """Keep a worker at work, and start it again when it has died."""
        try:
            while self._employ(index):
                pass
        finally:
            with self._changed:
                self._living -= 1
                if not self._living:
                    self._give_up()
                self._changed.notify_all()

    def _employ(self, index: int) -> bool:
        """Start a worker and give it messages; return whether it has died and another one is worth a try."""
        try:
            hand = self._hired(index)
            hand.greet()
        except (WorkerError, OSError) as error:
            self._problem = str(error)
            return False
        self._count_ready(1)
        try:
            while (job := self._next(index)) is not None:
                try:
                    answer: RecordDict | Error = hand.carry_out(job)
                except Exception as error:
                    self._tell_of_death(error)
                    self._done(job, Error(code=CRASHED, reason=f"its process died: {error}"))
                    return self._part_with(hand)
                self._done(job, answer)
            return False
        finally:
            self._count_ready(-1)

    def _hired(self, index: int) -> Hand:
        hand = Hand(self._setup, self._board)
        with self._changed:
            self._hands[index] = hand
            if self._closing:
                hand.end()
        return hand

    def _tell_of_death(self, error: Exception) -> None:
        """Say why a worker died, before the reply does: what waits for that may be all that is left of the run."""
        if not self._closing:
            logger.warning("a process of the pool died (%s): another one is started", error)

    def _part_with(self, hand: Hand) -> bool:
        """Leave no process of a worker behind that could not go on; return whether another one is wanted."""
        if self._closing:
            return False
        hand.end()
        hand.join()
        return True

    def _next(self, index: int) -> Job | None:
        """Wait for the next message for a worker; None at the end."""
        with self._changed:
            while not self._closing:
                job = self._chosen(index)
                if job is not None:
                    self._busy.add(job.node)
                    self._home[job.node] = index
                    return job
                self._changed.wait()
        return None

    def _chosen(self, index: int) -> Job | None:
        """Take from what waits the worker's own, else nobody's, else the first one; None where it is to wait."""
        near = [*islice(self._waiting, _LOOKED_THROUGH)]
        if self._held >= _HELD:
            near = [job for job in near if job.position < self._taken + 2 * self._processes]
        homes = [self._home.get(job.node) for job in near]
        at = next((homes.index(home) for home in (index, None) if home in homes), 0)
        job = near[at] if near else None
        if job is not None:
            self._waiting.remove(job)
        return job

    def _done(self, job: Job, answer: RecordDict | Error) -> None:
        with self._changed:
            self._busy.discard(job.node)
            self._settle(job, answer)
            self._changed.notify_all()

    def _settle(self, job: Job, answer: RecordDict | Error) -> None:
        message_id = job.message.metadata.message_id
        if message_id not in self._expected:
            return  # nobody waits for it any more
        self._expected.discard(message_id)
        reply = self._replies[message_id] = Message(answer, reply_to=job.message)
        self._held += _size(reply)
        if self._progress is not None:
            self._progress(self._put - len(self._expected), self._put)

    def _count_ready(self, more: int) -> None:
        with self._changed:
            self._ready += more
            self._changed.notify_all()

    def _give_up(self) -> None:
        """Answer for what waits: nobody is left to carry it out."""
        while self._waiting:
            self._settle(self._waiting.popleft(), Error(code=CRASHED, reason=self._problem))


def _size(reply: Message) -> int:
    return sum(map(len, blobs_of(reply.content))) if reply.has_content() else 0
