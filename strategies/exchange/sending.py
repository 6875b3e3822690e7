"""Send messages, collect replies: in waves, in the order of the messages, and never beyond a deadline."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from logging import getLogger

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from common.errors import PayloadError
from common.learning.compute import return_if_large
from common.specs.names import SECONDS_LEFT
from strategies.exchange.in_process import works_when_asked
from strategies.exchange.inbox import Awaited, collect, nodes_online, pull_until
from strategies.exchange.replies import require_records

logger = getLogger("flwr")

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
