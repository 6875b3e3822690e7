"""Send messages and get replies, so that no reply can hold up the others, spoil them, or hold up the deadline.

``grid.pull_messages`` returns when all is there of every reply that has begun to arrive, and raises for all of them
when one cannot be put together; by then the SuperLink has handed all of them out, and hands none out again. So each
call asks for one reply, in one of several threads that take turns: a device that is cut off in the middle of its
upload holds one thread for minutes, and one that sends nonsense has its own reply refused.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import repeat
from logging import getLogger
from queue import Empty, SimpleQueue
from typing import TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from common.errors import PayloadError
from common.learning.compute import return_if_large
from common.specs.updates import SECONDS_LEFT
from common.wire.npy import size_of
from strategies.exchange.replies import allowing, require_records

T = TypeVar("T")

logger = getLogger("flwr")

#: threads at most, one more for each look at which all of them are stuck; they take turns at asking
_PULLERS = 16

#: seconds between two looks for a reply: a twentieth of the time waited so far, within these bounds
_FIRST_PAUSE, _LONGEST_PAUSE, _SHARE = 0.005, 0.5, 0.05

#: seconds between two looks at the nodes, and after which a call counts as stuck
_PATIENCE = 5.0

#: seconds that calls are waited for when the time is over
_LAST_CALL = 1.0

#: seconds from a call that the SuperLink was too busy for to the next
_BUSY_PAUSE = 1.0

#: our own codes of an error reply
NO_REPLY, NOT_SENT, UNREADABLE = 100, 101, 103

#: Flower's codes of an error of the SuperLink's own, for a node that it could not reach or a reply that it lost
_NOT_THERE = frozenset({3, 4, 5})


def works_when_asked(grid: Grid) -> bool:
    """Return whether a grid says that it carries a message out when its reply is pulled, in the thread that pulls.

    What it has no reply to then, it never will. Who asks for one reply at a time has one in memory.
    """
    return bool(getattr(grid, "works_when_asked", False))


# ---- a SuperLink that is too busy ----------------------------------------------------------------


def is_busy(error: BaseException) -> bool:
    """Return whether an error is a server's that may have the answer later: HTTP 5xx and 429, gRPC's UNAVAILABLE."""
    status = getattr(getattr(error, "response", None), "status_code", 0)
    code = getattr(error, "code", None)
    name = getattr(code(), "name", "") if callable(code) else ""
    return status >= 500 or status == 429 or name == "UNAVAILABLE"


def unless_busy(ask: Callable[[], T], until: float = 0.0) -> T | None:
    """Return what the SuperLink says; None if it is too busy and stays so ``until`` then."""
    while True:
        try:
            return ask()
        except Exception as error:
            if not is_busy(error):
                raise
        if time.monotonic() + _BUSY_PAUSE > until:
            return None
        time.sleep(_BUSY_PAUSE)


def nodes_online(grid: Grid, until: float = 0.0) -> set[int] | None:
    """Return the nodes that are there; None if the SuperLink is too busy to say (`unless_busy`)."""
    return unless_busy(lambda: {*grid.get_node_ids()}, until)


# ---- one reply -----------------------------------------------------------------------------------


def pull(grid: Grid, message: Message, max_bytes: int) -> Message | None:
    """Return the reply to a message if it has come; what is not a reply becomes an error in that node's name.

    Raises
    ------
    Exception
        Whatever the grid raises when the connection fails or the SuperLink is too busy.
    """
    about = message.metadata
    try:
        with allowing(max_bytes):
            replies = list(grid.pull_messages([about.message_id]))
        if not replies:
            return None
        sent = about.message_id
        reply = next((r for r in replies if r.metadata.reply_to_message_id == sent), None)
        if reply is None:
            raise PayloadError("the reply says that it answers another message")
        # What a reply says of itself, its sender wrote.
        if reply.has_content() and reply.metadata.src_node_id != about.dst_node_id:
            raise PayloadError("the reply says that it comes from another node")
        require_records(reply)
    except PayloadError as error:
        logger.debug("the message is not a reply", exc_info=True)
        return error_reply(message, UNREADABLE, str(error))
    except OSError:
        raise
    except Exception as error:
        if is_busy(error):
            raise
        nodes_online(grid)  # raises if it is the connection that failed
        logger.debug("a reply could not be put together", exc_info=True)
        what = f"the reply cannot be put together ({type(error).__name__})"
        return error_reply(message, UNREADABLE, what)
    return Message(reply.error, reply_to=message) if reply.has_error() else reply


def error_reply(message: Message, code: int, reason: str) -> Message:
    """Return an error in the place of a reply to ``message``."""
    return Message(Error(code=code, reason=reason), reply_to=message)


class Inbox:
    """Sends messages and collects their replies; an unanswered request is repeated, in threads that take turns.

    A call that outlasts a look continues, and the next look has its reply. Requested by a new call meanwhile, it would
    be gone from the SuperLink, whose answer is that the message expired.
    """

    def __init__(self, grid: Grid, traffic: Traffic | None = None) -> None:
        self._grid, self._traffic = grid, traffic
        self._begun = time.monotonic()
        self._sent: list[tuple[Message, int]] = []
        self._turn = threading.Condition()  # of what follows
        self._due: list[tuple[float, int]] = []  # a heap: when to request which reply next
        self._calls: dict[int, float] = {}  # whose reply is being requested, since when
        self._threads = self._busy = 0
        self._over = False
        self._found: SimpleQueue[tuple[int, Message] | BaseException] = SimpleQueue()

    def send(self, messages: Sequence[Message], max_bytes: Sequence[int] = ()) -> range:
        """Send ``messages``, whose replies may have so many bytes of arrays, or none; return their places."""
        first = len(self._sent)
        # Flower refuses to send none.
        accepted = {str(i) for i in self._grid.push_messages(messages) if i} if messages else set()
        for place, message in enumerate(messages, first):
            self._sent.append((message, max_bytes[place - first] if max_bytes else 0))
            if message.metadata.message_id not in accepted:
                reason = "the message could not be sent to its node"
                self._found.put((place, error_reply(message, NOT_SENT, reason)))
                continue
            if self._traffic is not None:
                self._traffic.sent(message)
            with self._turn:
                heappush(self._due, (0.0, place))
        return range(first, len(self._sent))

    def collect(self, places: Collection[int], end: float) -> dict[int, Message]:
        """Return the replies, by their messages' places, that come until ``end``, or all of ``places`` have.

        Raises
        ------
        Exception
            Whatever the grid raises when its connection fails.
        """
        came: dict[int, Message] = {}
        if works_when_asked(self._grid):
            found = ((place, self.worked(place, end)) for place in places)
            return {place: reply for place, reply in found if reply is not None}
        with self._turn:
            at_work = self._threads - len(self._stuck())
        self._start(min(_PULLERS, len(places)) - at_work)
        left, look = {*places}, time.monotonic() + _PATIENCE
        while left and (now := time.monotonic()) < end:
            try:
                item = self._found.get(timeout=max(0.0, min(look, end) - now))
            except Empty:
                item = None
            if isinstance(item, BaseException):
                raise item
            if item is not None:
                came[item[0]] = item[1]
                left.discard(item[0])
            if time.monotonic() >= look:
                for place in self._cut_off():
                    reason = "the node went away while it sent its reply"
                    came[place] = error_reply(self._sent[place][0], NO_REPLY, reason)
                    left.discard(place)
                with self._turn:
                    all_stuck = bool(self._due) and self._threads <= len(self._stuck())
                self._start(1 if all_stuck else 0)
                look = time.monotonic() + _PATIENCE
        return came

    def worked(self, place: int, end: float) -> Message | None:
        """Return the reply of a grid that computes it on request, and keep nothing of it in memory."""
        return_if_large(self._sent[place][1])
        try:
            return unless_busy(partial(self._pull, place), end)
        finally:
            return_if_large(self._sent[place][1])

    def close(self) -> dict[int, Message]:
        """Stop requesting, and return the replies of the last calls, which the SuperLink no longer has."""
        with self._turn:
            self._over = True
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._threads <= len(self._stuck()), _LAST_CALL)
        came: dict[int, Message] = {}
        while not self._found.empty():
            item = self._found.get()
            if not isinstance(item, BaseException):
                came[item[0]] = item[1]
        return came

    def _start(self, threads: int) -> None:
        for _ in range(threads):
            with self._turn:
                self._threads += 1
            # One that is stuck must not hold the end of the process.
            threading.Thread(target=self._take_turns, daemon=True).start()

    def _take_turns(self) -> None:
        """Request one reply after the other, until all are there or the wait for them has ended."""
        try:
            while (place := self._next()) is not None:
                self._ask(place)
        except BaseException as error:
            self._found.put(error)
        finally:
            with self._turn:
                self._threads -= 1
                self._turn.notify_all()

    def _next(self) -> int | None:
        """Wait for the next turn; each reply is requested once, however late: one that has already come counts."""
        with self._turn:
            while self._due:
                due, place = self._due[0]
                now = time.monotonic()
                if due <= now:
                    heappop(self._due)
                    self._calls[place] = now
                    return place
                if self._over:
                    return None
                self._turn.wait(due - now)
            return None  # the others have the rest

    def _ask(self, place: int) -> None:
        called, pause = self._calls[place], _BUSY_PAUSE
        try:
            reply = self._pull(place)
        except Exception as error:
            if not is_busy(error):
                raise
            reply = None
        else:
            waited = time.monotonic() - self._begun
            pause = min(max(_FIRST_PAUSE, _SHARE * waited), _LONGEST_PAUSE)
        if reply is not None:
            self._found.put((place, reply))
        with self._turn:
            now = time.monotonic()
            del self._calls[place]
            if reply is None:
                shared = (now - called) * len(self._due) / _PULLERS  # at most half of the time
                heappush(self._due, (now + max(pause, shared), place))
            self._turn.notify_all()

    def _pull(self, place: int) -> Message | None:
        try:
            return pull(self._grid, *self._sent[place])
        except Exception as error:
            if is_busy(error):
                self._busy += 1
                if self._busy & (self._busy - 1) == 0:  # 1, 2, 4, 8, ...
                    logger.warning(
                        "the SuperLink was too busy to hand out a reply, %d times until now: it is retried until "
                        "the deadline",
                        self._busy,
                    )
            raise

    def _stuck(self) -> list[int]:
        """Return whose replies are requested in calls that last so long that the rest may never come."""
        now = time.monotonic()
        return [place for place, called in self._calls.items() if now - called > _PATIENCE]

    def _cut_off(self) -> list[int]:
        """Return the replies that stuck calls ask for and whose nodes are not there any more."""
        with self._turn:
            stuck = self._stuck()
        online = nodes_online(self._grid) if stuck else None
        nodes = {place: self._sent[place][0].metadata.dst_node_id for place in stuck}
        return [] if online is None else [place for place in stuck if nodes[place] not in online]


# ---- an exchange ---------------------------------------------------------------------------------
# In waves, in the order of the messages, and never beyond a deadline.


@dataclass
class Traffic:
    """Bytes of message content by node id, counted the same way in every engine."""

    down: Counter[int] = field(default_factory=Counter)
    up: Counter[int] = field(default_factory=Counter)

    def sent(self, message: Message) -> None:
        """Count an instruction."""
        self.down[message.metadata.dst_node_id] += content_bytes(message.content)

    def received(self, node_id: int, reply: Message) -> None:
        """Count a reply, accepted or not; one that carries an error has no content."""
        if reply.has_content():
            self.up[node_id] += content_bytes(reply.content)


def content_bytes(content: RecordDict) -> int:
    """Return the bytes of a message's records, by Flower's own count: arrays as serialised, keys and values."""
    return sum(len(key) + _record_bytes(record) for key, record in content.items())


def _record_bytes(record: ArrayRecord | ConfigRecord | MetricRecord) -> int:
    if isinstance(record, ArrayRecord):
        return sum(len(key) + size_of(array) for key, array in record.items())
    try:
        return record.count_bytes()
    except (IndexError, ValueError):  # Flower's, of a ConfigRecord with an empty text or list in it
        return 0


def exchange(
    grid: Grid,
    messages: Sequence[Message],
    *,
    deadline: float,
    max_bytes: Sequence[int] = (),
    wave: int = 0,
    traffic: Traffic | None = None,
    again: bool = False,
) -> Iterator[Message]:
    """Send ``messages`` and yield one reply for each, in the order of ``messages``.

    Our own loop in place of ``grid.send_and_receive``, whose pause between two looks is three seconds in a
    deployment, and which one unfinished upload holds up. A device that has not answered ``deadline`` seconds after
    the first message went out is answered for by an error reply, so that no caller ever waits or counts
    wrongly. Nobody but who reads a reply keeps it.

    Parameters
    ----------
    deadline : float
        Seconds for all waves together; devices that compute on request each have all of them.
    max_bytes : sequence of int
        The most bytes of arrays in the reply to each message, 0 for those after the last; what claims more is refused
        before it is put together.
    wave : int
        Messages out at a time; 0 sends all at once. The replies of a wave are handed on, and can be forgotten, before
        the next one goes out.
    traffic : Traffic, optional
        The account that bytes are added to.
    again : bool
        Whether a node that the SuperLink could not reach gets its message once more, if it is back when all others have
        answered. It does the same work to the same bytes; where work costs privacy it would be charged twice.
    """
    end = time.monotonic() + deadline
    size = wave or max(1, len(messages))
    limits = [*max_bytes, *[0] * (len(messages) - len(max_bytes))]

    def answered(message: Message, reply: Message | None) -> Message:
        if reply is None:
            reply = error_reply(message, NO_REPLY, f"no reply within {deadline:g} s")
        if traffic is not None:
            traffic.received(message.metadata.dst_node_id, reply)
        return reply

    for first in range(0, len(messages), size):
        part, most = messages[first : first + size], limits[first : first + size]
        late = first > 0 and time.monotonic() >= end
        replies = repeat(None) if late else _ask_all(grid, part, most, end, traffic, again=again)
        yield from map(answered, part, replies)


def _ask_all(
    grid: Grid,
    messages: Sequence[Message],
    max_bytes: Sequence[int],
    end: float,
    traffic: Traffic | None,
    *,
    again: bool,
) -> Iterator[Message | None]:
    """Return the reply to each message, computed when it is read if the grid computes on request.

    Each instruction states how long its reply is awaited, so that a site ends with the round.
    """
    for message in messages:
        config = message.content.get("config")
        if isinstance(config, ConfigRecord):
            config[SECONDS_LEFT] = max(0.0, end - time.monotonic())
    inbox = Inbox(grid, traffic)
    places = inbox.send(messages, max_bytes)
    if works_when_asked(grid):
        return map(inbox.worked, places, repeat(end))
    try:
        came = inbox.collect(places, end)
    finally:
        last = inbox.close()
    came |= last
    errors = {i: reply.error.code for i, reply in came.items() if again and reply.has_error()}
    away = sorted(i for i, code in errors.items() if code in _NOT_THERE)
    if away and time.monotonic() < end:
        online = nodes_online(grid) or ()
        back = [i for i in away if messages[i].metadata.dst_node_id in online]
        repeated = [_repeated(messages[i]) for i in back]
        most = [max_bytes[i] for i in back]
        second = _ask_all(grid, repeated, most, end, traffic, again=False)
        for i, reply in zip(back, second, strict=True):
            if reply is not None and reply.has_content():
                came[i] = Message(reply.content, reply_to=messages[i])
    return map(came.pop, places, repeat(None))


def _repeated(message: Message) -> Message:
    """Return a message once more, for a node that was away and is back."""
    to = message.metadata
    logger.info("node %d was away and is back: it is asked once more", to.dst_node_id)
    return Message(message.content, to.dst_node_id, to.message_type, group_id=to.group_id)
