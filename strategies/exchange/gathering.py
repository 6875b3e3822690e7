"""Wait until a federation is complete: who has answered, who is online and has not, who is not there at all.

A node has one question out at a time, so that a site at other work neither holds up those that come later nor finds
a row of questions when it is free.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from logging import getLogger

from flwr.app import Message
from flwr.serverapp import Grid

from common.errors import FederationError, one_line
from common.sites import Site, in_site_order
from strategies.exchange.inbox import Awaited, collect
from strategies.exchange.roll_call import expected_sites, question, read_answer
from strategies.exchange.sending import as_reply, post

logger = getLogger("flwr")

#: seconds between two sentences about those who are waited for
_EVERY = 60.0

#: seconds between two looks at who has come: a tenth of the time waited so far, within these bounds
_SHORTEST_LOOK, _LONGEST_LOOK, _SHARE = 0.2, 5.0, 0.1

#: seconds behind which a node that is online is asked once more: one that was started again has lost the question
_AGAIN = 90.0

#: seconds that a node beyond those counted on is waited for when they are there
_GRACE = 10.0


@dataclass(frozen=True)
class _Question:
    """One that is out."""

    message: Message
    node_id: int
    since: float


class Gathering:
    """The wait for a federation's sites.

    Parameters
    ----------
    grid : Grid
        The nodes.
    clients : int
        How many sites of their own data are counted on. A node that holds a partition says how many there are, and
        that number wins: plain ``flwr run`` starts two nodes whatever the configuration says.
    classes : int
        How many classes are to be counted; 0 for none.
    deadline : float
        Seconds.
    """

    def __init__(self, grid: Grid, clients: int, *, classes: int, deadline: float) -> None:
        self._grid, self._clients, self._classes, self._deadline = grid, clients, classes, deadline
        self._begun = self._told = time.monotonic()
        self._known: dict[int, Site] = {}
        self._failed: dict[int, str] = {}
        self._out: dict[str, _Question] = {}

    def sites(self) -> list[Site]:
        """Wait until the federation is complete and return its sites in site order.

        Raises
        ------
        FederationError
            If fewer nodes than needed are there at the deadline, or a node is refused.
        """
        end = self._begun + self._deadline
        while True:
            here = sorted(self._grid.get_node_ids())
            self._ask(here)
            self._listen(end)
            needed = expected_sites(self._known.values()) or self._clients
            present = [self._known[node_id] for node_id in here if node_id in self._known]
            if len(present) >= needed and not self._pending():
                return in_site_order(present)
            if time.monotonic() >= end:
                raise FederationError(self._too_few(here, present, needed))
            self._tell(here, present, needed)
            time.sleep(_SHORTEST_LOOK)

    def _ask(self, here: list[int]) -> None:
        """Ask those that have not answered and have no fresh question out."""
        now = time.monotonic()
        open_to = set(here) - self._known.keys()
        self._out = {i: q for i, q in self._out.items() if q.node_id in open_to}
        fresh = {q.node_id for q in self._out.values() if now - q.since < _AGAIN}
        messages = [
            question(node_id, self._classes)
            for node_id in here
            if node_id not in self._known and node_id not in fresh
        ]
        for message, sent in zip(messages, post(self._grid, messages), strict=True):
            if sent:
                asked = _Question(message, message.metadata.dst_node_id, now)
                self._out[message.metadata.message_id] = asked

    def _listen(self, end: float) -> None:
        """Read what is answered until all have, or it is time to look who has come."""
        now = time.monotonic()
        look = max(_SHORTEST_LOOK, min(_SHARE * (now - self._begun), _LONGEST_LOOK))
        if not self._out:
            return
        awaited = {i: Awaited(asked.node_id, max_bytes=0) for i, asked in self._out.items()}
        replies, _ = collect(self._grid, awaited, min(end, now + look))
        for message_id, asked in list(self._out.items()):
            reply = as_reply(asked.message, replies.get(message_id))
            if reply is None:
                continue
            node_id = self._out.pop(message_id).node_id
            answer = read_answer(node_id, reply, self._classes)
            if isinstance(answer, Site):
                self._known[node_id] = answer
            elif self._failed.get(node_id) != str(answer):
                self._failed[node_id] = str(answer)
                logger.warning("%s", answer)

    def _pending(self) -> bool:
        """Whether a node that came with the others may still answer."""
        now = time.monotonic()
        open_to = [q for q in self._out.values() if q.node_id not in self._known]
        return any(now - q.since < _GRACE for q in open_to)

    def _tell(self, here: list[int], present: list[Site], needed: int) -> None:
        now = time.monotonic()
        if now - self._told >= _EVERY:
            self._told = now
            logger.info(
                "%d of %d sites are there after %.0f of %g s (%s)",
                *(len(present), needed, now - self._begun, self._deadline),
                self._described(here, present),
            )

    def _described(self, here: list[int], present: list[Site]) -> str:
        """Return who is there and who is online without an answer."""
        parts = [", ".join(site.name for site in in_site_order(present)) or "none"]
        unheard = [i for i in here if i not in self._known]
        parts += [self._failed[i] for i in unheard if i in self._failed]
        if silent := [i for i in unheard if i not in self._failed]:
            parts.append(said_of_silent(self._grid, silent))
        return "; ".join(parts)

    def _too_few(self, here: list[int], present: list[Site], needed: int) -> str:
        silent = [i for i in here if i not in self._known]
        absent = needed - len(present) - len(silent)
        advice = []
        if absent > 0:
            advice.append("start the missing SuperNodes")
        if silent:
            advice.append(
                "wait until the silent sites are free (a run that was ended may still be at work there) or start "
                "their SuperNodes again"
            )
        return (
            f"{len(present)} of {needed} sites were there after {self._deadline:g} s "
            f"({self._described(here, present)}): {', '.join(advice)}, or lower federation.clients"
        )


def wait_for_sites(grid: Grid, clients: int, *, classes: int, deadline: float) -> list[Site]:
    """Wait until the federation is complete and return its sites in site order; see `Gathering`."""
    return Gathering(grid, clients, classes=classes, deadline=deadline).sites()


def said_of_silent(
    grid: Grid, node_ids: Iterable[int], names: Mapping[int, str] | None = None
) -> str:
    """Return a clause about nodes that are online and do not answer.

    Each is called by the name under which it answered earlier, else by the one it was registered with, else by its
    number.
    """
    registered = {node.node_id: one_line(node.name[:64]) for node in grid.get_nodes()}
    called = {**registered, **(names or {})}
    said = [f"{called[i]} (node {i})" if called.get(i) else f"node {i}" for i in sorted(node_ids)]
    return f"online and busy or not answering: {', '.join(said)}"
