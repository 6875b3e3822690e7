"""Wait until a federation is complete: who has answered, who is online and has not, who is not there at all.

A node has one question out at a time, so that a site at other work neither holds up those that come later nor finds
a row of questions when it is free.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from logging import getLogger

from flwr.app import Message
from flwr.serverapp import Grid

from common.errors import FederationError
from common.sites import Site, in_site_order, namesakes
from strategies.exchange.inbox import Awaited, Inbox
from strategies.exchange.naming import (
    listed,
    misnamed,
    registered,
    said_of,
    said_of_silent,
    some_of,
)
from strategies.exchange.one_for_all import answers_of_all
from strategies.exchange.roll_call import (
    Question,
    Refused,
    composed,
    disagreement,
    expected_sites,
    read_answer,
)
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
class Attendance:
    """Who answered the roll call.

    Attributes
    ----------
    refused, silent : mapping of int to str
        Why each other node that is there takes no part, by node id: by what it answered, or because it did not.
    """

    sites: list[Site]
    refused: Mapping[int, str]
    silent: Mapping[int, str]

    @property
    def left_out(self) -> dict[int, str]:
        """Why each node that is there and takes no part does not, by node id."""
        return {**self.refused, **self.silent}


@dataclass(frozen=True)
class _Out:
    """One that is out."""

    message: Message
    node_id: int
    since: float


class Gathering:
    """The wait for a federation's sites.

    Parameters
    ----------
    clients : int
        How many sites of their own data are counted on. A node that holds a partition says how many there are, and
        that number wins: plain ``flwr run`` starts two nodes whatever the configuration says.
    deadline : float
        Seconds.
    min_replies : int
        How many sites a run begins with at least.
    """

    def __init__(
        self, grid: Grid, clients: int, question: Question, *, deadline: float, min_replies: int
    ) -> None:
        self._grid, self._clients, self._question, self._deadline = (
            grid,
            clients,
            question,
            deadline,
        )
        self._min_replies = min_replies
        self._begun = self._told = time.monotonic()
        self._known: dict[int, Site] = {}
        self._refused: dict[int, str] = {}
        self._failed: dict[int, str] = {}
        self._names: dict[int, str] = {}
        self._out: dict[str, _Out] = {}
        self._inbox = Inbox(grid)

    def attendance(self) -> Attendance:
        """Wait until every node that is counted on has answered, and return who takes part.

        A node that is refused has answered: the others begin without it where there are ``min_replies``, as they
        would go on without it in mid-run. One that is online and silent does not count either at the deadline.

        Raises
        ------
        FederationError
            If fewer nodes than needed are there at the deadline, or fewer than ``min_replies`` can take part.
        """
        try:
            return self._wait()
        finally:
            self._inbox.close()

    def _wait(self) -> Attendance:
        end = self._begun + self._deadline
        self._known = answers_of_all(self._grid, self._question)
        while True:
            here = sorted(self._grid.get_node_ids())
            self._ask(here)
            self._listen(end)
            known = [self._known[i] for i in here if i in self._known]
            if any(site.node_id not in self._names for site in known):
                self._names = dict.fromkeys(here, "") | registered(self._grid)
            borrowed = misnamed(known, self._names)
            present, odd = _belonging([s for s in known if s.node_id not in borrowed])
            odd |= borrowed
            refused = self._refused_of(here) | odd
            needed = expected_sites(present) or self._clients
            late = time.monotonic() >= end
            silent = self._silent(here) if late else {}
            heard = len(present) + len(refused) + len(silent)
            if heard >= needed and (late or not self._pending()):
                if len(present) >= self._min_replies:
                    self._say_who_is_left_out(refused | silent)
                    return Attendance(in_site_order(present), refused, silent)
                if not silent:
                    raise FederationError(self._too_few_left(present, needed, refused))
            if late:
                raise FederationError(self._too_few(here, present, needed))
            self._tell(here, present, needed)
            time.sleep(_SHORTEST_LOOK)

    def _say_who_is_left_out(self, left_out: Mapping[int, str]) -> None:
        for why in left_out.values():
            logger.warning("left out: %s", why)

    def _too_few_left(self, present: list[Site], needed: int, refused: Mapping[int, str]) -> str:
        return (
            f"{len(present)} of {needed} sites can take part where federation.min_replies asks for "
            f"{self._min_replies} ({some_of([*refused.values()])})"
        )

    def _silent(self, here: Iterable[int]) -> dict[int, str]:
        """Return why each node that is online and has said nothing of use takes no part."""
        unheard = [i for i in here if i not in self._known and i not in self._refused]
        if any(i not in self._names for i in unheard):
            self._names = registered(self._grid)
        return {i: self._failed.get(i) or said_of([i], self._names) for i in unheard}

    def _refused_of(self, here: Iterable[int]) -> dict[int, str]:
        there = set(here)
        return {i: why for i, why in self._refused.items() if i in there}

    def _ask(self, here: list[int]) -> None:
        """Ask those that have not answered and have no fresh question out."""
        now = time.monotonic()
        self._refused = self._refused_of(here)
        open_to = set(here) - self._known.keys() - self._refused.keys()
        self._out = {i: q for i, q in self._out.items() if q.node_id in open_to}
        fresh = {q.node_id for q in self._out.values() if now - q.since < _AGAIN}
        unasked = [i for i in here if i in open_to and i not in fresh]
        messages = composed(unasked, self._question) if unasked else []
        for message, sent in zip(messages, post(self._grid, messages), strict=True):
            if sent:
                asked = _Out(message, message.metadata.dst_node_id, now)
                self._out[message.metadata.message_id] = asked

    def _listen(self, end: float) -> None:
        """Read what is answered until all have, or it is time to look who has come."""
        now = time.monotonic()
        look = max(_SHORTEST_LOOK, min(_SHARE * (now - self._begun), _LONGEST_LOOK))
        if not self._out:
            return
        awaited = {i: Awaited(asked.node_id, max_bytes=0) for i, asked in self._out.items()}
        replies, _ = self._inbox.look(awaited, min(end, now + look))
        for message_id, asked in list(self._out.items()):
            reply = as_reply(asked.message, replies.get(message_id))
            if reply is None:
                continue
            node_id = self._out.pop(message_id).node_id
            answer = read_answer(node_id, reply, self._question)
            if isinstance(answer, Site):
                self._known[node_id] = answer
            elif isinstance(answer, Refused):
                self._refused[node_id] = str(answer)
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
        parts = [listed([site.name for site in in_site_order(present)]) or "none"]
        unheard = [i for i in here if i not in self._known]
        said = self._failed | self._refused
        parts += [said[i] for i in unheard if i in said]
        if silent := [i for i in unheard if i not in said]:
            parts.append(said_of_silent(self._grid, silent))
        return "; ".join(parts)

    def _too_few(self, here: list[int], present: list[Site], needed: int) -> str:
        silent = [i for i in here if i not in self._known and i not in self._refused]
        absent = needed - len(present) - len(silent) - len(self._refused)
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
            f"({self._described(here, present)}): {', '.join(advice)}, or lower federation.sites"
        )


def wait_for_sites(
    grid: Grid, clients: int, question: Question, *, deadline: float, min_replies: int
) -> Attendance:
    """Wait until the federation is complete and return who takes part; see `Gathering`."""
    return Gathering(
        grid, clients, question, deadline=deadline, min_replies=min_replies
    ).attendance()


def _belonging(sites: Sequence[Site]) -> tuple[list[Site], dict[int, str]]:
    """Return the sites that make one federation, and why each of the others does not, by node id.

    Most of them say how many partitions there are. Of two that bear one name nobody can tell whose it is.
    """
    votes = Counter(site.partitions for site in sites).most_common(2)
    agreed = votes[0][0] if votes and (len(votes) == 1 or votes[0][1] > votes[1][1]) else None
    names = Counter(site.name for site in sites if site.partitions == agreed)
    odd: dict[int, str] = {}
    for site in sites:
        if site.partitions != agreed:
            numbers = ", ".join(map(str, sorted({s.partitions for s in sites})))
            odd[site.node_id] = disagreement(numbers)
        elif names[site.name] > 1:
            odd[site.node_id] = namesakes([s for s in sites if s.name == site.name])
    return [site for site in sites if site.node_id not in odd], odd
