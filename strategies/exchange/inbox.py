"""Pull replies so that none of them can hold up the others, or the deadline.

``grid.pull_messages`` returns when all is there of every reply that has begun to arrive. A device that is cut off in
the middle of its upload holds that call for minutes, so each call asks for few replies, in a thread of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from queue import Empty, SimpleQueue

from flwr.app import Message
from flwr.serverapp import Grid

#: threads at most; with more messages than that each asks for several replies
_PULLERS = 16

#: seconds between two looks: a twentieth of the time waited so far, within these bounds
_FIRST_PAUSE, _LONGEST_PAUSE, _SHARE = 0.005, 0.5, 0.05

#: seconds between two looks at the nodes, and after which a call counts as held
_PATIENCE = 5.0

_Item = Message | BaseException


class _Puller(threading.Thread):
    """Asks for the replies to a few messages until they are there, or nobody waits for them any more."""

    def __init__(
        self, grid: Grid, ids: list[str], found: SimpleQueue[_Item], over: threading.Event
    ) -> None:
        super().__init__(daemon=True)  # one that is held must not hold the end of the process
        self.ids = set(ids)
        self._grid, self._found, self._over = grid, found, over
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
            while self.ids and not self._over.is_set():
                self._called = time.monotonic()
                replies = list(self._grid.pull_messages(sorted(self.ids)))
                self._called = None
                for reply in replies:
                    self.ids.discard(reply.metadata.reply_to_message_id)
                    self._found.put(reply)
                waited = time.monotonic() - begun
                self._over.wait(min(max(_FIRST_PAUSE, _SHARE * waited), _LONGEST_PAUSE))
        except BaseException as error:
            self._found.put(error)


def collect(
    grid: Grid, sent: Mapping[str, int], end: float
) -> tuple[dict[str, Message], frozenset[str]]:
    """Return the replies that came before ``end``, and the messages whose nodes left while they replied.

    Parameters
    ----------
    sent : mapping of str to int
        The node that each message went to, by the message's id.
    end : float
        When to stop waiting, on the clock of ``time.monotonic``.

    Returns
    -------
    replies : dict of str to Message
        By the id of the message that is answered.
    cut_off : frozenset of str
        Ids of messages that nothing more is to be expected for.
    """
    replies = {r.metadata.reply_to_message_id: r for r in grid.pull_messages(list(sent))}
    open_ids = sorted(sent.keys() - replies.keys())
    if not open_ids:
        return replies, frozenset()
    found: SimpleQueue[_Item] = SimpleQueue()
    over = threading.Event()
    share = min(_PULLERS, len(open_ids))
    pullers = [_Puller(grid, open_ids[i::share], found, over) for i in range(share)]
    for puller in pullers:
        puller.start()
    cut_off: frozenset[str] = frozenset()
    look = time.monotonic() + _PATIENCE
    try:
        while sent.keys() - replies.keys() - cut_off and (now := time.monotonic()) < end:
            try:
                item = found.get(timeout=max(0.0, min(look, end) - now))
            except Empty:
                item = None
            if isinstance(item, BaseException):
                raise item
            if item is not None:
                replies[item.metadata.reply_to_message_id] = item
            if time.monotonic() >= look:
                cut_off |= _cut_off(grid, sent, pullers)
                look = time.monotonic() + _PATIENCE
    finally:
        over.set()
    return replies, cut_off - replies.keys()


def _cut_off(grid: Grid, sent: Mapping[str, int], pullers: list[_Puller]) -> frozenset[str]:
    """Return the messages that a held call asks for and whose nodes are not there any more."""
    held = {message_id for puller in pullers if puller.held for message_id in puller.ids}
    if not held:
        return frozenset()
    here = set(grid.get_node_ids())
    return frozenset(message_id for message_id in held if sent[message_id] not in here)
