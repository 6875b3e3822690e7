"""Pull replies so that none of them can hold up the others, spoil them, or hold up the deadline.

``grid.pull_messages`` returns when all is there of every reply that has begun to arrive, and raises for all of them
when one cannot be put together; by then the SuperLink has handed all of them out, and hands none out again. So each
call asks for one reply, in one of several threads that take turns: a device that is cut off in the middle of its
upload holds one thread for minutes, and one that sends nonsense has its own reply refused.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from logging import getLogger
from queue import Empty, SimpleQueue
from typing import TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from common.errors import PayloadError
from common.learning.compute import return_if_large
from common.specs.updates import SECONDS_LEFT
from strategies.exchange.replies import allowing, require_records

T = TypeVar("T")

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


class SuperLinkBusy:
    """What a call brings that the SuperLink was too busy for: nothing has come yet."""


#: a message's id and the reply to it, or why that is none; or what ended the connection itself
_Item = tuple[str, Message | PayloadError | SuperLinkBusy] | BaseException

#: a message's id and when to look for its reply
_PollSlot = tuple[str, float]


class _Puller(threading.Thread):
    """Looks for one reply after the other, until all are there or nobody waits for them any more."""

    def __init__(
        self,
        grid: Grid,
        sent: Mapping[str, Awaited],
        turns: SimpleQueue[_PollSlot],
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
                if reply is not None and not isinstance(reply, SuperLinkBusy):
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
    """Return whether an error is a server's that may have the answer later: HTTP 5xx and 429, gRPC's UNAVAILABLE."""
    status = getattr(getattr(error, "response", None), "status_code", 0)
    code = getattr(error, "code", None)
    name = getattr(code(), "name", "") if callable(code) else ""
    return status >= 500 or status == 429 or name == "UNAVAILABLE"


def unless_busy(ask: Callable[[], T], until: float = 0.0) -> T | None:
    """Return what ``ask`` says of the SuperLink, asked again ``until`` then while it is too busy; None if it still is."""
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


def pull_until(
    grid: Grid, message_id: str, asked: Awaited, end: float
) -> Message | PayloadError | None:
    """Return what :func:`pull` does, asking again until ``end`` while the SuperLink is too busy."""
    while isinstance(reply := pull(grid, message_id, asked), SuperLinkBusy):
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


def pull(
    grid: Grid, message_id: str, asked: Awaited
) -> Message | PayloadError | SuperLinkBusy | None:
    """Return the reply to one message, why what came is none, or None or SuperLinkBusy while nothing has come."""
    try:
        with allowing(asked.max_bytes):
            replies = list(grid.pull_messages([message_id]))
    except OSError:
        raise
    except Exception as error:
        if is_busy(error):
            logger.debug("the SuperLink could not answer", exc_info=True)
            return SuperLinkBusy()
        nodes_online(grid)  # raises if it is the connection that failed
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
        self._turns: SimpleQueue[_PollSlot] = SimpleQueue()
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
                if isinstance(reply, SuperLinkBusy):
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
                if not isinstance(reply, SuperLinkBusy):
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


# ---- sending -------------------------------------------------------------------------------------
# Send messages, collect replies: in waves, in the order of the messages, and never beyond a deadline.

NO_REPLY = 100
NOT_SENT = 101
UNREADABLE = 103

#: Flower's codes of an error of the SuperLink's own, for a node that it could not reach or a reply that it lost
_NOT_THERE = frozenset({3, 4, 5})


@dataclass
class Traffic:
    """Bytes of message content by node id, counted the same way in every engine."""

    down: dict[int, int] = field(default_factory=dict)
    up: dict[int, int] = field(default_factory=dict)

    def sent(self, message: Message) -> None:
        """Count an instruction."""
        _add(self.down, message.metadata.dst_node_id, content_bytes(message.content))

    def received(self, node_id: int, reply: Message) -> None:
        """Count a reply, accepted or not; one that carries an error has no content."""
        if reply.has_content():
            _add(self.up, node_id, content_bytes(reply.content))


def _add(account: dict[int, int], node_id: int, amount: int) -> None:
    account[node_id] = account.get(node_id, 0) + amount


def content_bytes(content: RecordDict) -> int:
    """Return the bytes of a message's records, by Flower's own count: arrays as serialised, keys and values."""
    return sum(len(key) + _record_bytes(record) for key, record in content.items())


def _record_bytes(record: ArrayRecord | ConfigRecord | MetricRecord) -> int:
    try:
        return record.count_bytes()
    except (
        IndexError,
        ValueError,
    ):  # Flower's count of a ConfigRecord with an empty text or list in it
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
    the first message went out is answered for by an error reply, so that nobody downstream ever waits or counts
    wrongly.

    Parameters
    ----------
    deadline : float
        Seconds for all waves together.
    max_bytes : sequence of int
        The most bytes of arrays in the reply to each message; what claims more is refused before it is put together.
        None may bring any where nothing is said.
    wave : int
        Messages out at a time; 0 sends all at once, and in this process carries out one after the other. The replies
        of a wave are handed on, and can be forgotten, before the next one goes out.
    traffic : Traffic, optional
        The account that bytes are added to.
    again : bool
        Whether a node that the SuperLink could not reach is asked once more, where it is back when all others have
        answered. It does the same work to the same bytes; where work costs privacy it would be charged twice.
    """
    max_bytes = max_bytes or [0] * len(messages)
    if works_when_asked(grid) and not wave:
        yield from _one_by_one(grid, messages, deadline, max_bytes, traffic)
        return
    end = time.monotonic() + deadline
    size = wave or max(1, len(messages))
    for first in range(0, len(messages), size):
        part = messages[first : first + size]
        _tell_time(part, end)
        late = first > 0 and time.monotonic() >= end
        most = max_bytes[first : first + size]
        replies: list[Message | None] = [None] * len(part)
        if not late:
            replies = _collect(grid, part, most, end, traffic)
        if again:
            _ask_again(grid, part, replies, most, end, traffic)
        for message, reply in zip(part, replies, strict=True):
            if reply is None:
                reply = _late(message, deadline)
            if traffic is not None:
                traffic.received(message.metadata.dst_node_id, reply)
            yield reply


def _late(message: Message, deadline: float) -> Message:
    reason = f"no reply within {deadline:g} s"
    return Message(Error(code=NO_REPLY, reason=reason), reply_to=message)


def _one_by_one(
    grid: Grid,
    messages: Sequence[Message],
    deadline: float,
    max_bytes: Sequence[int],
    traffic: Traffic | None,
) -> Iterator[Message]:
    """Yield each reply as it is made, so that the one before can be forgotten.

    Each device has the whole time, as where they work side by side.
    """
    _tell_time(messages, time.monotonic() + deadline)
    post(grid, messages)
    for message, most in zip(messages, max_bytes, strict=True):
        return_if_large(most)
        if traffic is not None:
            traffic.sent(message)
        asked = Awaited(message.metadata.dst_node_id, most)
        end = time.monotonic() + deadline
        reply = as_reply(message, pull_until(grid, message.metadata.message_id, asked, end))
        if reply is None:
            reply = _late(message, deadline)
        if traffic is not None:
            traffic.received(message.metadata.dst_node_id, reply)
        return_if_large(most)
        held = [reply]
        del reply
        yield held.pop()  # as whoever passes replies on: nobody but who reads one keeps it


def _tell_time(messages: Sequence[Message], end: float) -> None:
    """Say in each instruction how long its reply is waited for, so that a site ends with the round."""
    for message in messages:
        config = message.content.get("config")
        if isinstance(config, ConfigRecord):
            config[SECONDS_LEFT] = max(0.0, end - time.monotonic())


def post(grid: Grid, messages: Sequence[Message]) -> list[bool]:
    """Send ``messages`` and return for each whether it is on its way."""
    if not messages:  # Flower refuses to send none
        return []
    accepted = {str(i) for i in grid.push_messages(messages) if i}
    return [m.metadata.message_id in accepted for m in messages]


def _collect(
    grid: Grid,
    messages: Sequence[Message],
    max_bytes: Sequence[int],
    end: float,
    traffic: Traffic | None,
) -> list[Message | None]:
    """Return the reply to each message that came before ``end``, else None."""
    ids = [
        m.metadata.message_id if sent else None
        for m, sent in zip(messages, post(grid, messages), strict=True)
    ]
    sent = {
        i: Awaited(m.metadata.dst_node_id, most)
        for i, m, most in zip(ids, messages, max_bytes, strict=True)
        if i is not None
    }
    replies, cut_off = collect(grid, sent, end)
    found: list[Message | None] = []
    for message, answered in zip(messages, ids, strict=True):
        if answered is None:
            reason = "the message could not be sent to its node"
            found.append(Message(Error(code=NOT_SENT, reason=reason), reply_to=message))
            continue
        if traffic is not None:
            traffic.sent(message)
        if answered in cut_off:
            reason = "the node went away while it sent its reply"
            found.append(Message(Error(code=NO_REPLY, reason=reason), reply_to=message))
            continue
        found.append(as_reply(message, replies.get(answered)))
    return found


def _ask_again(
    grid: Grid,
    messages: Sequence[Message],
    replies: list[Message | None],
    max_bytes: Sequence[int],
    end: float,
    traffic: Traffic | None,
) -> None:
    """Put the second answers of nodes that were away and are back into ``replies``."""
    away = [
        i
        for i, reply in enumerate(replies)
        if reply is not None and reply.has_error() and reply.error.code in _NOT_THERE
    ]
    if not away or time.monotonic() >= end:
        return
    here = nodes_online(grid) or ()
    back = [i for i in away if messages[i].metadata.dst_node_id in here]
    repeated = []
    for about, content in ((messages[i].metadata, messages[i].content) for i in back):
        kind, group = about.message_type, about.group_id
        repeated.append(Message(content, about.dst_node_id, kind, group_id=group))
        logger.info("node %d was away and is back: it is asked once more", about.dst_node_id)
    _tell_time(repeated, end)
    most = [max_bytes[i] for i in back]
    for i, reply in zip(back, _collect(grid, repeated, most, end, traffic), strict=True):
        if reply is not None and reply.has_content():
            replies[i] = Message(reply.content, reply_to=messages[i])


def as_reply(message: Message, reply: Message | PayloadError | None) -> Message | None:
    """Return what came; an error as one of the site that was asked, whoever made it and whatever it says of itself."""
    try:
        if isinstance(reply, PayloadError):
            raise reply
        if reply is not None:
            require_records(reply)
    except PayloadError as error:
        return Message(Error(code=UNREADABLE, reason=str(error)), reply_to=message)
    if reply is not None and reply.has_error():
        return Message(reply.error, reply_to=message)
    return reply


# ---- in process ----------------------------------------------------------------------------------
# A federation without processes: its devices work one after the other, each when its reply is asked for.

WORKS_WHEN_ASKED = "works_when_asked"
"""The attribute by which a grid says so."""


def works_when_asked(grid: Grid) -> bool:
    """Return whether a grid carries a message out when its reply is pulled, in the thread that pulls.

    What it has no reply to then, it never will. Who asks for one reply at a time has one in memory.
    """
    return bool(getattr(grid, WORKS_WHEN_ASKED, False))
