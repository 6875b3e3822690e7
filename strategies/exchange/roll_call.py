"""Who is there: one query a node, asked at the start and again when the membership changes."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from common.code.fingerprint import source_fingerprint
from common.errors import FederationError, one_line
from common.privacy.ledger import LEDGER_TIPS, LedgerTip, tips_to_text
from common.sites import (
    ENGINES,
    SUPERLINK,
    Site,
    in_site_order,
    is_site_name,
    namesakes,
    partition_name,
    site_slug,
)
from common.specs.updates import DATA
from strategies.exchange.inbox import (
    NO_REPLY,
    NOT_SENT,
    Awaited,
    Inbox,
    as_reply,
    exchange,
    patiently,
    post,
)
from strategies.exchange.replies import rejection_reason, require_records

#: names of the records of an answer
_RECORDS = frozenset({"about", "sizes"})

#: error replies that speak of a node's connection and not of the node: Flower's own for one that is gone or whose
#: process died (a SuperNode that was killed is listed as online for up to a minute), and ours
_AWAY = {3, 4, 5, 8, NO_REPLY, NOT_SENT}

AWAITS_OWNER = 102
"""A site's own code for one whose owner has not approved the run yet: its sentence says until when it waits."""


class NoAnswer(FederationError):
    """A node that did not answer the roll call: it may answer the next one."""


class SiteRefused(FederationError):
    """A node that cannot take part, by what it answered: it is asked again when it has left and come back."""


@dataclass(frozen=True)
class Question:
    """What the roll call asks of every node, and the largest claim it believes.

    Parameters
    ----------
    classes : int
        Classes of which counts are asked; 0 for none.
    held_out : bool
        Whether the number of what a site holds out for its evaluation is asked.
    max_examples : int
        A site that claims more images is refused.
    ledger_tips : mapping of str to LedgerTip
        The newest tip of each site's privacy ledger that the server saw; a site whose ledger lacks its own refuses.
    folders : bool
        Whether partitions are simulated sites' own folders, which draw by their names as real ones do.
    """

    classes: int
    held_out: bool
    max_examples: int
    ledger_tips: Mapping[str, LedgerTip] = field(default_factory=dict)
    folders: bool = False


def ask_nodes(
    grid: Grid, node_ids: Sequence[int], question: Question, *, deadline: float
) -> list[Site | NoAnswer | SiteRefused]:
    """Ask ``node_ids`` for their names and sizes.

    Returns
    -------
    list of Site, NoAnswer or Refused
        One for each node, in the order of ``node_ids``: refused are those that run other source than this server,
        bear another name than their key is registered with, say that they cannot take part, or answer nonsense.
    """
    messages = composed(node_ids, question)
    replies = exchange(grid, messages, deadline=deadline)
    answers = [
        read_answer(node_id, reply, question)
        for node_id, reply in zip(node_ids, replies, strict=True)
    ]
    odd = misnamed([each for each in answers if isinstance(each, Site)], registered(grid))
    return [
        SiteRefused(odd[node_id]) if node_id in odd else answer
        for node_id, answer in zip(node_ids, answers, strict=True)
    ]


def composed(node_ids: Iterable[int], question: Question) -> list[Message]:
    """Return the queries that nodes answer with their names and sizes; all hold the same content, written once."""
    heads = {LEDGER_TIPS: tips_to_text(question.ledger_tips)} if question.ledger_tips else {}
    config = ConfigRecord(
        {"class-counts": question.classes > 0, "held-out": question.held_out, **heads}
    )
    content = RecordDict({"config": config})
    return [Message(content, i, "query.roll_call", group_id="roll-call") for i in node_ids]


def read_answer(node_id: int, reply: Message, question: Question) -> Site | NoAnswer | SiteRefused:
    """Return the site that ``node_id`` says it is, or why it takes no part: it did not answer, or is refused."""
    if reply.has_error():
        what = "is not approved yet" if reply.error.code == AWAITS_OWNER else "failed the roll call"
        sentence = f"node {node_id} {what}: {rejection_reason(reply)}"
        return (
            NoAnswer(sentence)
            if reply.error.code in {*_AWAY, AWAITS_OWNER}
            else SiteRefused(sentence)
        )
    try:
        require_records(reply, _RECORDS)
        about, sizes = reply.content["about"], reply.content["sizes"]
        if not (isinstance(about, ConfigRecord) and isinstance(sizes, MetricRecord)):
            raise TypeError("other kinds of records")
        site, source = _site(node_id, about, sizes, question), str(about["source"])
    except Exception as error:  # whatever is wrong with an answer is its node's affair
        return SiteRefused(
            f"node {node_id} answered the roll call with something else ({_short(error)}): run the same release on "
            "the server and on every device"
        )
    if source != source_fingerprint():
        return SiteRefused(
            f"site '{site.name}' runs source {one_line(source[:16])}, the server runs {source_fingerprint()}: their "
            "results would not belong together; give both the same release"
        )
    problem = implausible(site, question)
    return site if problem is None else SiteRefused(f"site '{site.name}' {problem}")


def _site(
    node_id: int, about: Mapping[str, Any], sizes: Mapping[str, Any], question: Question
) -> Site:
    """Return the site as it describes itself; ValueError for what is no name and no count."""
    name, engine = str(about["site"]), str(about["engine"])
    if not is_site_name(name):
        raise ValueError(f"the site name {name[:80]!a}")
    if engine not in ENGINES:
        raise ValueError(f"the engine {engine[:80]!r}")
    counts = sizes.get("class-counts", [])
    if not isinstance(counts, list) or len(counts) != question.classes:
        raise ValueError(f"no counts of {question.classes} classes")
    held = int(about["partition-id"]) >= 0
    known = held and not question.folders
    return Site(
        name=name,
        node_id=node_id,
        examples=_whole(sizes["num-examples"]),
        partition=_whole(about["partition-id"]) if held else -1,
        partitions=_whole(sizes["num-partitions"]),
        class_counts=tuple(map(_whole, counts)),
        engine=engine,
        held_out=_whole(sizes["num-held-out"]) if question.held_out else 0,
        drawn_as=partition_name(_whole(about["partition-id"])) if known else "",
        reviewed=engine == SUPERLINK and about.get("reviewed") is True,
        data=one_line(str(about.get(DATA, ""))[:64]) if held else "",
    )


def implausible(site: Site, question: Question) -> str | None:
    """Return what is wrong with numbers that each are counts; None if nothing is."""
    most = question.max_examples
    if not site.examples:
        return "holds no images to learn from"
    claimed = max(site.examples, site.held_out)
    if claimed > most:
        return (
            f"says that it holds {_written(claimed)} images where federation.max_examples allows {most}: raise that "
            "if it is so"
        )
    if site.class_counts and sum(site.class_counts) != site.examples:
        return (
            f"sent counts of classes that add up to {_written(sum(site.class_counts))} where it holds "
            f"{site.examples} images"
        )
    if site.partitions and not 0 <= site.partition < site.partitions:
        return f"says that it holds partition {site.partition} of {site.partitions}, which count from 0"
    return None


def _whole(value: object) -> int:
    """Return a count as an integer; ValueError for anything else, infinities, NaN and truth values among them."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{str(value)[:40]} is not a count")
    if not math.isfinite(value) or value != int(value) or value < 0:
        raise ValueError(f"{value:g} is not a count")
    return int(value)


def _written(count: int) -> str:
    return str(count) if count < 10**15 else f"{count:.0e}"


def _short(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {error}"[:160])


def disagreement(numbers: str) -> str:
    """Say that nodes speak of different numbers of partitions, ``numbers`` in words."""
    return (
        f"the nodes disagree on num-partitions ({numbers}): start every SuperNode with the same one"
    )


def expected_sites(sites: Iterable[Site]) -> int:
    """Return how many partitions the sites speak of, 0 of their own data; FederationError if they disagree."""
    numbers = {site.partitions for site in sites}
    if len(numbers) > 1:
        raise FederationError(disagreement(", ".join(map(str, sorted(numbers)))))
    return numbers.pop() if numbers else 0


# ---- gathering -----------------------------------------------------------------------------------
# Wait until a federation is complete: who has answered, who is online and has not, who is not there at all.
#
# A node has one question out at a time, so that a site at other work neither holds up those that come later nor finds
# a row of questions when it is free.

logger = getLogger("flwr")

#: seconds between two sentences about those who are waited for
_EVERY = 60.0

#: seconds between two looks at who has come: a tenth of the time waited so far, within these bounds
_SHORTEST_LOOK, _LONGEST_LOOK, _SHARE = 0.2, 5.0, 0.1

#: seconds behind which a node that is online is asked once more: one that was started again has lost the question
_AGAIN = 90.0

#: seconds that a node beyond those counted on is waited for: an idle site starts its process when a message comes
_GRACE = 30.0


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
class _PendingQuestion:
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
        self._out: dict[str, _PendingQuestion] = {}
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
            here = sorted(patiently(self._grid.get_node_ids))
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
        return {i: self._failed.get(i) or describe_silent([i], self._names) for i in unheard}

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
                asked = _PendingQuestion(message, message.metadata.dst_node_id, now)
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
                continue
            if isinstance(answer, SiteRefused):
                self._refused[node_id] = str(answer)
                continue
            if node_id not in self._names:
                self._names = registered(self._grid)
            name, number = self._names.get(node_id, ""), f"node {node_id}"
            sentence = str(answer).replace(number, f"{name} ({number})" if name else number, 1)
            if self._failed.get(node_id) != sentence:
                self._failed[node_id] = sentence
                logger.warning("%s", sentence)

    def _pending(self) -> bool:
        """Return whether a node that came with the others may still answer."""
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
        message = self._failed | self._refused
        parts += [message[i] for i in unheard if i in message]
        if silent := [i for i in unheard if i not in message]:
            parts.append(describe_unresponsive(self._grid, silent))
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


# ---- naming --------------------------------------------------------------------------------------
# Sites, nodes and reasons in a sentence: by name where there is one, and not all where there are many.

SILENT = "online and busy or not answering: "


def some_of(reasons: Sequence[str], shown: int = 3) -> str:
    """Return the first of ``reasons``, and how many more there are."""
    different = list(dict.fromkeys(reasons))
    more = f"; and {len(different) - shown} more" if len(different) > shown else ""
    return "; ".join(different[:shown]) + more


def listed(names: Sequence[str], shown: int = 20) -> str:
    """Return the first of ``names``, and how many more there are."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def describe_unresponsive(
    grid: Grid, node_ids: Iterable[int], names: Mapping[int, str] | None = None
) -> str:
    """Return a clause about nodes that are online and do not answer.

    Each is called by the name under which it answered earlier, else by the one it was registered with, else by its
    number.
    """
    return describe_silent(node_ids, {**registered(grid), **(names or {})})


def registered(grid: Grid) -> dict[int, str]:
    """Return the names under which the nodes that are online were registered, by node id."""
    return {
        node.node_id: one_line(node.name[:64]) for node in patiently(lambda: [*grid.get_nodes()])
    }


def misnamed(sites: Iterable[Site], names: Mapping[int, str]) -> dict[int, str]:
    """Return why each of the sites takes no part whose name is not the one that its key was registered with.

    Parameters
    ----------
    names : mapping of int to str
        As `registered` gives them. A node that was registered without a name may bear any; a file of a key is called by
        a site's slug, and a key that was registered from it too.
    """
    odd = {}
    for site in sites:
        known = names.get(site.node_id, "")
        if known and known not in (site.name, site_slug(site.name)):
            odd[site.node_id] = (
                f"node {site.node_id} calls itself '{site.name}', and its key is registered as '{known}': set "
                f"site='{known}' in its node config, or register its key as '{site.name}'"
            )
    return odd


def describe_silent(node_ids: Iterable[int], called: Mapping[int, str]) -> str:
    """Return that clause about nodes of which the names are known that they have."""
    message = [
        f"{called[i]} (node {i})" if called.get(i) else f"node {i}" for i in sorted(node_ids)
    ]
    return f"{SILENT}{', '.join(message)}"


# ---- one for all ---------------------------------------------------------------------------------
# The roll call of a simulation in this process, whose grid knows what each node would answer.


def answers_of_all(grid: Grid, question: Question) -> dict[int, Site]:
    """Return every node's answer to the roll call by node id; none where they have to be asked one by one.

    What is wrong with an answer, a site says when it is asked by itself.
    """
    tell = getattr(grid, "sites_of", None)
    asked = {"by_class": question.classes > 0, "held_out": question.held_out}
    sites: list[Site] = [] if tell is None else tell(**asked)
    return (
        {} if any(implausible(site, question) for site in sites) else {s.node_id: s for s in sites}
    )
