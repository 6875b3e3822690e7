"""Pull replies so that none of them can hold up the others, spoil them, or hold up the deadline.

``grid.pull_messages`` returns when all is there of every reply that has begun to arrive, and raises for all of them
when one cannot be put together; by then the SuperLink has handed all of them out, and hands none out again. So each
call asks for one reply, in one of several threads that take turns: a device that is cut off in the middle of its
upload holds one thread for minutes, and one that sends nonsense has its own reply refused.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from logging import getLogger
from queue import Empty, SimpleQueue

from flwr.app import Message
from flwr.serverapp import Grid

from common.errors import PayloadError
from strategies.exchange.in_process import works_when_asked
from strategies.exchange.inflating import allowing

logger = getLogger("flwr")

#: threads at most, one more for each look at which all of them are held; they take turns at asking
_PULLERS = 16

#: seconds between two looks for a reply: a twentieth of the time waited so far, within these bounds
_FIRST_PAUSE, _LONGEST_PAUSE, _SHARE = 0.005, 0.5, 0.05

#: seconds between two looks at the nodes, and after which a call counts as held
_PATIENCE = 5.0

#: seconds that a call is waited for when the time is over
_LAST_CALL = 1.0

#: seconds from a call that the SuperLink was too busy for to the next
_BUSY_PAUSE = 1.0


@dataclass(frozen=True)
class Awaited:
    """A reply that is waited for: the node that was asked, and the most bytes of arrays that it may send."""

    node_id: int
    max_bytes: int


class Busy:
    """What a call brings that the SuperLink was too busy for: nothing has come yet."""


#: a message's id and the reply to it, or why that is none; or what ended the connection itself
_Item = tuple[str, Message | PayloadError | Busy] | BaseException

#: a message's id and when to look for its reply
_Turn = tuple[str, float]


class _Puller(threading.Thread):
    """Looks for one reply after the other, until all are there or nobody waits for them any more."""

    def __init__(
        self,
        grid: Grid,
        sent: Mapping[str, Awaited],
        turns: SimpleQueue[_Turn],
        found: SimpleQueue[_Item],
        over: threading.Event,
    ) -> None:
        super().__init__(daemon=True)  # one that is held must not hold the end of the process
        self.asks = ""
        self._grid, self._sent = grid, sent
        self._turns, self._found, self._over = turns, found, over
        self._called: float | None = None

    @property
    def held(self) -> bool:
        """Whether its call has lasted so long that the rest of an upload may never come."""
        called = self._called
        return called is not None and time.monotonic() - called > _PATIENCE

    def run(self) -> None:
        """Pull, and pass on what comes, an error too."""
        begun = time.monotonic()
        try:
            while True:
                self.asks, due = self._turns.get_nowait()
                if due and self._over.wait(max(0.0, due - time.monotonic())):
                    return  # but each is looked for once, however late: what is here already counts
                self._called = called = time.monotonic()
                reply = pull(self._grid, self.asks, self._sent[self.asks])
                self._called, now = None, time.monotonic()
                if reply is not None:
                    self._found.put((self.asks, reply))
                if reply is not None and not isinstance(reply, Busy):
                    continue
                pause = min(max(_FIRST_PAUSE, _SHARE * (now - begun)), _LONGEST_PAUSE)
                pause = pause if reply is None else _BUSY_PAUSE
                busy = (now - called) * self._turns.qsize() / _PULLERS  # at most half of the time
                self._turns.put((self.asks, now + max(pause, busy)))
        except Empty:
            pass  # the others have the rest
        except BaseException as error:
            self._found.put(error)


def is_busy(error: BaseException) -> bool:
    """Tell whether an error is a server's that may have the answer later: HTTP 5xx and 429, gRPC's UNAVAILABLE."""
    status = getattr(getattr(error, "response", None), "status_code", 0)
    code = getattr(error, "code", None)
    name = getattr(code(), "name", "") if callable(code) else ""
    return status >= 500 or status == 429 or name == "UNAVAILABLE"


def nodes_online(grid: Grid) -> set[int] | None:
    """Return the nodes that are there; None where the SuperLink is too busy to say."""
    try:
        return set(grid.get_node_ids())
    except Exception as error:
        if not is_busy(error):
            raise
        return None


def pull_until(
    grid: Grid, message_id: str, asked: Awaited, end: float
) -> Message | PayloadError | None:
    """Return what :func:`pull` does, asking again until ``end`` while the SuperLink is too busy."""
    while isinstance(reply := pull(grid, message_id, asked), Busy):
        note_busy(1)
        if time.monotonic() + _BUSY_PAUSE > end:
            return None
        time.sleep(_BUSY_PAUSE)
    return reply


def note_busy(times: int) -> None:
    """Say that the SuperLink did not answer."""
    logger.warning(
        "the SuperLink was too busy to hand out a reply, %d times until now: it is asked again until the deadline",
        times,
    )


def pull(grid: Grid, message_id: str, asked: Awaited) -> Message | PayloadError | Busy | None:
    """Return the reply to one message, why what came is none, or None or Busy while nothing has come."""
    try:
        with allowing(asked.max_bytes):
            replies = list(grid.pull_messages([message_id]))
    except OSError:
        raise
    except Exception as error:
        if is_busy(error):
            logger.debug("the SuperLink could not answer", exc_info=True)
            return Busy()
        grid.get_node_ids()  # raises if it is the connection that failed
        logger.debug("a reply could not be put together", exc_info=True)
        if isinstance(error, PayloadError):
            return error
        return PayloadError(f"the reply cannot be put together ({type(error).__name__})")
    return _reply_to(message_id, asked.node_id, replies) if replies else None


def _reply_to(message_id: str, node_id: int, replies: list[Message]) -> Message | PayloadError:
    """Return the reply that is the asked node's to this message: what a reply says of itself, its sender wrote."""
    for reply in replies:
        if reply.metadata.reply_to_message_id != message_id:
            continue
        if reply.has_content() and reply.metadata.src_node_id != node_id:
            return PayloadError("the reply says that it comes from another node")
        return reply
    return PayloadError("the reply says that it answers another message")


def collect(
    grid: Grid, sent: Mapping[str, Awaited], end: float
) -> tuple[dict[str, Message | PayloadError], frozenset[str]]:
    """Return the replies that came before ``end``, and the messages whose nodes left while they replied.

    Parameters
    ----------
    sent : mapping of str to Awaited
        Whom each message went to and what it asks for, by the message's id.
    end : float
        When to stop waiting, on the clock of ``time.monotonic``.

    Returns
    -------
    replies : dict of str to Message or PayloadError
        By the id of the message that is answered; an error is why what came is no reply.
    cut_off : frozenset of str
        Ids of messages that nothing more is to be expected for.

    Raises
    ------
    Exception
        Whatever the grid raises when its connection fails.
    """
    inbox = Inbox(grid)
    try:
        replies, cut_off = inbox.look(sent, end)
    finally:
        inbox.close()
    replies |= inbox.rest()
    return replies, cut_off - replies.keys()


class Inbox:
    """Replies that are looked for again and again, as :func:`collect` does once.

    A call that outlasts a look goes on, and the next look has its reply. Asked for by another call meanwhile, it would
    be gone from the SuperLink, whose answer is that the message expired.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._sent: dict[str, Awaited] = {}
        self._turns: SimpleQueue[_Turn] = SimpleQueue()
        self._found: SimpleQueue[_Item] = SimpleQueue()
        self._over = threading.Event()
        self._pullers: list[_Puller] = []
        self._busy = 0

    def look(
        self, sent: Mapping[str, Awaited], end: float
    ) -> tuple[dict[str, Message | PayloadError], frozenset[str]]:
        """Return what :func:`collect` does, until ``end``; what was asked for before is asked for on."""
        if works_when_asked(self._grid):
            answers = {i: pull_until(self._grid, i, asked, end) for i, asked in sent.items()}
            return {i: reply for i, reply in answers.items() if reply is not None}, frozenset()
        self._ask(sent)
        replies: dict[str, Message | PayloadError] = {}
        cut_off: frozenset[str] = frozenset()
        look = time.monotonic() + _PATIENCE
        while sent.keys() - replies.keys() - cut_off and (now := time.monotonic()) < end:
            try:
                item = self._found.get(timeout=max(0.0, min(look, end) - now))
            except Empty:
                item = None
            if isinstance(item, BaseException):
                raise item
            if item is not None:
                message_id, reply = item
                if isinstance(reply, Busy):
                    self._note_busy()
                else:
                    replies[message_id] = reply
            if time.monotonic() >= look:
                cut_off |= self._cut_off()
                if all(p.held for p in self._alive()) and not self._turns.empty():
                    self._start()
                look = time.monotonic() + _PATIENCE
        return replies, cut_off - replies.keys()

    def close(self) -> None:
        """Ask for nothing more, once what was never looked for has been."""
        self._over.set()

    def rest(self) -> dict[str, Message | PayloadError]:
        """Return what the last calls brought: what was pulled is gone from the SuperLink, and is asked for no more."""
        for puller in self._pullers:
            if not puller.held:
                puller.join(_LAST_CALL)
        replies: dict[str, Message | PayloadError] = {}
        while not self._found.empty():
            item = self._found.get()
            if not isinstance(item, BaseException):
                message_id, reply = item
                if not isinstance(reply, Busy):
                    replies[message_id] = reply
        return replies

    def _note_busy(self) -> None:
        self._busy += 1
        if self._busy & (self._busy - 1) == 0:  # 1, 2, 4, 8, ...
            note_busy(self._busy)

    def _ask(self, sent: Mapping[str, Awaited]) -> None:
        fresh = sent.keys() - self._sent.keys()
        self._sent |= {message_id: sent[message_id] for message_id in fresh}
        for message_id in (i for i in sent if i in fresh):
            self._turns.put((message_id, 0.0))
        self._pullers = self._alive()
        at_work = sum(not puller.held for puller in self._pullers)
        for _ in range(min(_PULLERS, len(sent)) - at_work):
            self._start()

    def _start(self) -> None:
        puller = _Puller(self._grid, self._sent, self._turns, self._found, self._over)
        puller.start()
        self._pullers.append(puller)

    def _alive(self) -> list[_Puller]:
        return [puller for puller in self._pullers if puller.is_alive()]

    def _cut_off(self) -> frozenset[str]:
        """Return the messages that a held call asks for and whose nodes are not there any more."""
        held = {puller.asks for puller in self._pullers if puller.held}
        if not held:
            return frozenset()
        here = nodes_online(self._grid)
        if here is None:
            return frozenset()
        return frozenset(i for i in held if self._sent[i].node_id not in here)
