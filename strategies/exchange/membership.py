"""Who takes part: the roll call, at the start and whenever nodes come, and what lasts of the sites over the rounds."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from logging import getLogger
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from common.code.fingerprint import source_fingerprint
from common.errors import FederationError, one_line
from common.privacy.ledger import LEDGER_TIPS, LedgerTip, tips_to_text
from common.settings.sections import FederationSettings
from common.sites import (
    ENGINES,
    SILENT,
    SUPERLINK,
    Site,
    engine_of,
    in_site_order,
    is_site_name,
    namesakes,
    partition_name,
    site_slug,
)
from common.specs.updates import (
    DATA,
    EXCEPTION,
    MEMORY_LOST,
    OTHER_DATA,
    OTHER_ROUNDS,
    WENT_BACK,
)
from strategies.exchange.evaluation import EvaluationRequest
from strategies.exchange.exchange import NO_REPLY, NOT_SENT, Inbox, nodes_online, unless_busy
from strategies.exchange.lengths import LengthHistory
from strategies.exchange.replies import (
    Outcome,
    PrivacyBudgetUsage,
    Upload,
    reasons_in_words,
    rejection_reason,
    require_names,
)

if TYPE_CHECKING:
    from strategies.exchange.open_round import OpenRound

logger = getLogger("flwr")

#: names of the records of an answer
_RECORDS = frozenset({"about", "sizes"})

#: error replies that speak of a node's connection and not of the node: Flower's own for one that is gone or whose
#: process died (a SuperNode that was killed is listed as online for up to a minute), and ours
_AWAY = {3, 4, 5, 8, NO_REPLY, NOT_SENT}

AWAITS_OWNER = 102
"""A site's own code for one whose owner has not approved the run yet: its sentence says until when it waits."""

#: seconds between two sentences about those who are waited for
_EVERY = 60.0

#: seconds between two looks at who has come: a tenth of the time waited so far, within these bounds
_SHORTEST_LOOK, _LONGEST_LOOK, _SHARE = 0.2, 5.0, 0.1

#: seconds after which an online node gets the question again: one that was restarted has lost it
_AGAIN = 90.0

#: seconds that a node beyond those counted on is waited for: an idle site starts its process when a message comes
_GRACE = 30.0

#: seconds that a node which comes between two rounds has for its answer
_JOINING = 60.0


class NoAnswer(FederationError):
    """A node that did not answer the roll call: it may answer the next one."""


class SiteRefused(FederationError):
    """A node that cannot take part, by what it answered: the question is repeated when it has left and come back."""


@dataclass(frozen=True)
class Question:
    """The question of the roll call, and the largest claim that it accepts.

    Parameters
    ----------
    classes : int
        Number of classes whose counts are requested; 0 for no counts.
    held_out : bool
        Whether the number of examples that a site holds out for evaluation is requested.
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


def composed(node_ids: Iterable[int], question: Question) -> list[Message]:
    """Return the queries that nodes answer with their names and sizes; all hold the same content, written once."""
    heads = {LEDGER_TIPS: tips_to_text(question.ledger_tips)} if question.ledger_tips else {}
    config = ConfigRecord(
        {"class-counts": question.classes > 0, "held-out": question.held_out, **heads}
    )
    content = RecordDict({"config": config})
    return [Message(content, i, "query.roll_call", group_id="roll-call") for i in node_ids]


def read_answer(node_id: int, reply: Message, question: Question) -> Site:
    """Return the site that ``node_id`` says it is; NoAnswer or SiteRefused says why it takes no part."""
    if reply.has_error():
        waits = reply.error.code == AWAITS_OWNER
        what = "waits for its owner's approval" if waits else "failed the roll call"
        kind = NoAnswer if waits or reply.error.code in _AWAY else SiteRefused
        raise kind(f"node {node_id} {what}: {rejection_reason(reply)}")
    try:
        require_names(reply, _RECORDS)
        about, sizes = reply.content["about"], reply.content["sizes"]
        if not (isinstance(about, ConfigRecord) and isinstance(sizes, MetricRecord)):
            raise TypeError("other kinds of records")
        site, source = _site(node_id, about, sizes, question), str(about["source"])
    except Exception as error:  # any fault of an answer is its node's
        why = one_line(f"{type(error).__name__}: {error}"[:160])
        raise SiteRefused(
            f"node {node_id} answered the roll call with something else ({why}): run the same release on the "
            "server and on every device"
        ) from None
    if source != source_fingerprint():
        raise SiteRefused(
            f"site '{site.name}' runs source {one_line(source[:16])}, the server runs {source_fingerprint()}: their "
            "results would not belong together; give both the same release"
        )
    if (problem := implausible(site, question)) is not None:
        raise SiteRefused(f"site '{site.name}' {problem}")
    return site


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
        examples=as_count(sizes["num-examples"]),
        partition=as_count(about["partition-id"]) if held else -1,
        partitions=as_count(sizes["num-partitions"]),
        class_counts=tuple(map(as_count, counts)),
        engine=engine,
        held_out=as_count(sizes["num-held-out"]) if question.held_out else 0,
        drawn_as=partition_name(as_count(about["partition-id"])) if known else "",
        data=one_line(str(about.get(DATA, ""))[:64]) if held else "",
    )


def implausible(site: Site, question: Question) -> str | None:
    """Return why counts contradict each other; None if they do not."""
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


def as_count(value: object) -> int:
    """Return a count as an integer; ValueError for anything else, infinities, NaN and truth values among them."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{str(value)[:40]} is not a count")
    if not math.isfinite(value) or value != int(value) or value < 0:
        raise ValueError(f"{value:g} is not a count")
    return int(value)


def _written(count: int) -> str:
    return str(count) if count < 10**15 else f"{count:.0e}"


def disagreement(numbers: str) -> str:
    """Describe that nodes report different numbers of partitions, ``numbers`` in words."""
    return (
        f"the nodes disagree on num-partitions ({numbers}): start every SuperNode with the same one"
    )


def expected_sites(sites: Iterable[Site]) -> int:
    """Return how many partitions the sites speak of, 0 of their own data; FederationError if they disagree."""
    numbers = {site.partitions for site in sites}
    if len(numbers) > 1:
        raise FederationError(disagreement(", ".join(map(str, sorted(numbers)))))
    return numbers.pop() if numbers else 0


# ---- the roll call -------------------------------------------------------------------------------
# Who has answered, who is online and has not, who is not there at all.
#
# A node has one question out at a time, so that a site at other work neither holds up those that come later nor finds
# a row of questions when it is free.


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


class RollCall:
    """Asks nodes who they are.

    Attributes
    ----------
    known : dict of int to Site
        Who has answered, by node id.
    refused : dict of int to str
        Why nodes can take no part, by what they answered; forgotten of one that leaves.
    failed : dict of int to str
        Why nodes gave no answer: they may answer the next question.
    names : dict of int to str
        The names that nodes were registered under, as far as they were needed.
    """

    def __init__(self, grid: Grid, question: Question) -> None:
        self.grid, self._question = grid, question
        self.known: dict[int, Site] = {}
        self.refused: dict[int, str] = {}
        self.failed: dict[int, str] = {}
        self.names: dict[int, str] = {}
        self._inbox = Inbox(grid)
        self._out: dict[int, tuple[int, float]] = {}  # place -> node, time of the question

    def ask(self, nodes: Collection[int], end: float) -> None:
        """Ask those of ``nodes`` that have not answered, and read what comes until all have, or until ``end``.

        Refused are those that run other source than this server, bear another name than their key is registered with,
        say that they cannot take part, or answer nonsense.
        """
        now, online = time.monotonic(), set(nodes)
        self.refused = {i: why for i, why in self.refused.items() if i in online}
        unheard = online - self.known.keys() - self.refused.keys()
        self._out = {at: asked for at, asked in self._out.items() if asked[0] in unheard}
        asked = sorted(unheard - {i for i, since in self._out.values() if now - since < _AGAIN})
        places = self._inbox.send(composed(asked, self._question)) if asked else ()
        self._out |= {at: (i, now) for at, i in zip(places, asked, strict=True)}
        replies = self._inbox.collect(self._out, end) if self._out else {}
        for place in replies.keys() & self._out.keys():
            self._read(self._out.pop(place)[0], replies[place])
        self._check_names(online & self.known.keys(), end)

    def answer(self, node_id: int) -> Site:
        """Return who a node that was asked says it is; NoAnswer or SiteRefused says why it takes no part."""
        if node_id in self.refused:
            raise SiteRefused(self.refused[node_id])
        if node_id not in self.known:
            raise NoAnswer(self.failed.get(node_id) or describe_silent([node_id], self.names))
        return self.known[node_id]

    def _read(self, node_id: int, reply: Message) -> None:
        try:
            self.known[node_id] = read_answer(node_id, reply, self._question)
        except SiteRefused as error:
            self.refused[node_id] = str(error)
        except NoAnswer as error:
            self._look_up([node_id])
            name, number = self.names.get(node_id, ""), f"node {node_id}"
            sentence = str(error).replace(number, f"{name} ({number})" if name else number, 1)
            if self.failed.get(node_id) != sentence:
                self.failed[node_id] = sentence
                logger.warning("%s", sentence)

    def _check_names(self, nodes: Collection[int], end: float) -> None:
        """Refuse a node whose name differs from its key's; one whose key cannot be checked yet is asked again later."""
        self._look_up(nodes, end)
        self.refused |= misnamed([self.known[i] for i in nodes], self.names)
        for node_id in nodes:
            if node_id not in self.names or node_id in self.refused:
                del self.known[node_id]

    def _look_up(self, nodes: Collection[int], end: float = 0.0) -> None:
        """Learn what nodes were registered as, if that is not known; until ``end`` of a SuperLink that is too busy."""
        if not all(i in self.names for i in nodes):
            self.names |= registered(self.grid, end) or {}

    def close(self) -> None:
        """Ask for nothing more."""
        self._inbox.close()

    def wait(self, clients: int, *, deadline: float, min_replies: int) -> Attendance:
        """Wait until every node that is counted on has answered, and return who takes part.

        A node that is refused has answered: the others begin without it where there are ``min_replies``, as they
        would go on without it in mid-run. One that is online and silent does not count either at the deadline.

        Parameters
        ----------
        clients : int
            How many sites of their own data are counted on. A node that holds a partition says how many there are, and
            that number wins: plain ``flwr run`` starts two nodes regardless of the configuration.
        deadline : float
            Seconds.
        min_replies : int
            How many sites a run begins with at least.

        Raises
        ------
        FederationError
            If fewer nodes than needed are there at the deadline, or fewer than ``min_replies`` can take part.
        """
        started = logged = time.monotonic()
        end = started + deadline
        self.known = answers_of_all(self.grid, self._question)
        while True:
            online = nodes_online(self.grid, end)
            if online is None:
                raise FederationError(
                    f"the SuperLink was too busy for {deadline:g} s to say which nodes are there: see what else it is "
                    "at, or raise federation.join_deadline"
                )
            now = time.monotonic()
            look = min(max(_SHORTEST_LOOK, _SHARE * (now - started)), _LONGEST_LOOK)
            self.ask(online, min(end, now + look))
            present, odd = _belonging([self.known[i] for i in sorted(online & self.known.keys())])
            refused = self.refused | odd
            needed = expected_sites(present) or clients
            late = time.monotonic() >= end
            silent = self._silent(online) if late else {}
            enough = len(present) + len(refused) + len(silent) >= needed
            times = [time.monotonic() - since for _, since in self._out.values()]
            # A node that came with the others may still answer.
            if enough and (late or all(waited >= _GRACE for waited in times)):
                if len(present) >= min_replies:
                    for why in (refused | silent).values():
                        logger.warning("left out: %s", why)
                    return Attendance(in_site_order(present), refused, silent)
                if not silent:
                    raise FederationError(
                        f"{len(present)} of {needed} sites can take part where federation.min_replies asks for "
                        f"{min_replies} ({some_of([*refused.values()])})"
                    )
            if late:
                raise FederationError(self._too_few(online, present, needed, deadline))
            if time.monotonic() - logged >= _EVERY:
                logged = time.monotonic()
                logger.info(
                    "%d of %d sites are there after %.0f of %g s (%s)",
                    *(len(present), needed, logged - started),
                    *(deadline, self._described(online, present)),
                )
            time.sleep(_SHORTEST_LOOK)

    def _unheard(self, online: Iterable[int]) -> list[int]:
        return [i for i in sorted(online) if i not in self.known and i not in self.refused]

    def _silent(self, online: Iterable[int]) -> dict[int, str]:
        """Return why each node that is online and has said nothing of use takes no part."""
        unheard = self._unheard(online)
        self._look_up(unheard)
        return {i: self.failed.get(i) or describe_silent([i], self.names) for i in unheard}

    def _described(self, online: Iterable[int], present: list[Site]) -> str:
        """Return who is there and who is online without an answer."""
        parts = [listed([site.name for site in in_site_order(present)]) or "none"]
        unheard, reasons = self._unheard(online), self.failed | self.refused
        parts += [reasons[i] for i in sorted(online) if i not in self.known and i in reasons]
        if silent := [i for i in unheard if i not in reasons]:
            self._look_up(silent)
            parts.append(describe_silent(silent, self.names))
        return "; ".join(parts)

    def _too_few(
        self, online: Iterable[int], present: list[Site], needed: int, deadline: float
    ) -> str:
        silent = self._unheard(online)
        advice = []
        if needed - len(present) - len(silent) - len(self.refused) > 0:
            advice.append("start the missing SuperNodes")
        if silent:
            advice.append(
                "wait until the silent sites are free (a run that was ended may still be at work there) or start "
                "their SuperNodes again"
            )
        return (
            f"{len(present)} of {needed} sites were there after {deadline:g} s "
            f"({self._described(online, present)}): {', '.join(advice)}, or lower federation.sites"
        )


def wait_for_sites(
    grid: Grid, clients: int, question: Question, *, deadline: float, min_replies: int
) -> Attendance:
    """Wait until the federation is complete and return who takes part; see `RollCall.wait`."""
    with closing(RollCall(grid, question)) as call:
        return call.wait(clients, deadline=deadline, min_replies=min_replies)


def _belonging(sites: Sequence[Site]) -> tuple[list[Site], dict[int, str]]:
    """Return the sites that make one federation, and why each of the others does not, by node id.

    Most of them say how many partitions there are. If two have the same name, it is unknown whose it is.
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


def some_of(reasons: Sequence[str], shown: int = 3) -> str:
    """Return the first of ``reasons``, and how many more there are."""
    different = list(dict.fromkeys(reasons))
    more = f"; and {len(different) - shown} more" if len(different) > shown else ""
    return "; ".join(different[:shown]) + more


def listed(names: Sequence[str], shown: int = 20) -> str:
    """Return the first of ``names``, and how many more there are."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def registered(grid: Grid, until: float = 0.0) -> dict[int, str] | None:
    """Return the registered names of the online nodes, by node id; None if the SuperLink is too busy.

    The request is repeated ``until`` then.
    """
    nodes = unless_busy(lambda: [*grid.get_nodes()], until)
    return None if nodes is None else {node.node_id: one_line(node.name[:64]) for node in nodes}


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
    """Return a clause about nodes that are online and do not answer, each by name where it is ``called`` something."""
    known = [f"{called[i]} (node {i})" if called.get(i) else f"node {i}" for i in sorted(node_ids)]
    return f"{SILENT}{', '.join(known)}"


# ---- one for all ---------------------------------------------------------------------------------
# The roll call of a simulation in this process, whose grid knows what each node would answer.


def answers_of_all(grid: Grid, question: Question) -> dict[int, Site]:
    """Return every node's answer to the roll call by node id; none where they have to be asked one by one.

    A site explains what is wrong with its answer when it is asked individually.
    """
    sites_of = getattr(grid, "sites_of", None)
    asked = {"by_class": question.classes > 0, "held_out": question.held_out}
    sites: list[Site] = [] if sites_of is None else sites_of(**asked)
    return (
        {} if any(implausible(site, question) for site in sites) else {s.node_id: s for s in sites}
    )


# ---- what lasts over the rounds ------------------------------------------------------------------


@dataclass
class Members:
    """The sites of a run.

    Parameters
    ----------
    counted_on : int
        The number of sites that the operator counts on.
    sites : list of Site
        Those that are there, in site order.
    refused : set of int
        The nodes that the roll call refused.
    left_out : mapping of int to str
        Why nodes that were there at the beginning take no part.
    were_there : set of str
        The names of all sites that have been there.
    round : OpenRound or None
        The one whose replies are awaited; its messages hold its initial weights.
    outcome : Outcome
        What became of the last round's replies.
    evaluation : EvaluationRequest
        What asks the sites for their figures of the last round's weights.
    last_accepted_round : dict of str to int
        The last round of which each site's work was accepted: its memory continues from there.
    accepted_this_process : set of str
        The sites whose work this process accepted: all they remember of this run was written since it started.
    spending : PrivacyBudgetUsage
        What the sites were charged for their privacy, and the heads of their ledgers.
    lengths : LengthHistory
        How long the updates of earlier rounds were.
    data : mapping of str to str
        The checksums of the run's initial data: by name for a simulated site's folder, else under "".
    """

    counted_on: int
    sites: list[Site] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)
    left_out: Mapping[int, str] = field(default_factory=dict)
    were_there: set[str] = field(default_factory=set)
    round: OpenRound | None = None
    outcome: Outcome = field(default_factory=Outcome)
    evaluation: EvaluationRequest = field(default_factory=EvaluationRequest)
    last_accepted_round: dict[str, int] = field(default_factory=dict)
    accepted_this_process: set[str] = field(default_factory=set)
    spending: PrivacyBudgetUsage = field(default_factory=PrivacyBudgetUsage)
    lengths: LengthHistory = field(default_factory=LengthHistory)
    data: Mapping[str, str] = field(default_factory=dict)

    def update(
        self,
        grid: Grid,
        question: Question,
        federation: FederationSettings,
        require: Callable[[Site], object],
    ) -> None:
        """Ask nodes that were not there before who they are, and let go of those that are away.

        A newcomer that does not belong is left out and logged: ``require``, too, raises FederationError of one. Too few
        nodes are waited for, up to the join deadline.

        Raises
        ------
        FederationError
            If fewer than ``min_replies`` nodes are there at the join deadline.
        """
        end = time.monotonic() + federation.join_deadline
        there = {site.node_id: site for site in self.sites}
        self.were_there |= {site.name for site in self.sites}
        online = nodes_online(grid)
        unchanged = online is None or online == there.keys() | self.refused
        if unchanged and len(there) >= federation.min_replies:
            return
        with closing(RollCall(grid, question)) as call:
            while True:
                online = nodes_online(grid)
                if online is None:
                    online = there.keys() | self.refused  # no change is known
                # A node that left and came back is asked anew; and a name may belong to a node which has left.
                if (there.keys() | self.refused) - online:
                    self.refused.clear()
                    call.refused.clear()
                if newcomers := sorted(online - there.keys() - self.refused):
                    self._admit(call, newcomers, there, federation, require)
                there = {i: site for i, site in there.items() if i in online}
                if len(there) >= federation.min_replies:
                    break
                if time.monotonic() >= end:
                    raise FederationError(self._too_few_left(call, online, there, federation))
                time.sleep(1.0)
        for site in self.sites:
            if site.node_id not in there:
                logger.warning("site %s is away", site.name)
        known = {site.node_id for site in self.sites}
        self.sites = in_site_order(there.values())
        for site in self.sites:
            if site.node_id not in known:
                logger.info("site %s has joined", site.name)

    def _admit(
        self,
        call: RollCall,
        newcomers: Sequence[int],
        there: dict[int, Site],
        federation: FederationSettings,
        require: Callable[[Site], object],
    ) -> None:
        """Add those newcomers to ``there`` that answer and belong; a site under a new node id replaces itself."""
        call.ask(newcomers, time.monotonic() + min(_JOINING, federation.round_deadline))
        online = nodes_online(call.grid)
        for node_id in newcomers:
            try:
                site = call.answer(node_id)
                if online is None:  # another node of its name may be there, or not
                    raise NoAnswer(
                        "the SuperLink is too busy to say which nodes are there; the node is asked again later"
                    )
                require(site)
                self._require_counted_on(site, federation.newcomers)
                others = [s for s in there.values() if s.name != site.name or s.node_id in online]
                expected_sites([*others, site])
                joined = in_site_order([*others, site])
            except FederationError as error:
                if not isinstance(error, NoAnswer):
                    self.refused.add(node_id)
                logger.warning("node %d is left out: %s", node_id, error)
            else:
                there.clear()
                there.update((s.node_id, s) for s in joined)

    def _require_counted_on(self, site: Site, newcomers: str) -> None:
        """Raise FederationError for a site with its own data beyond those that the operator counted on."""
        known = newcomers == "any" or site.partitions or site.name in self.were_there
        if not known and len(self.were_there) >= self.counted_on:
            raise FederationError(
                f"site '{site.name}' was not counted on (federation.sites={self.counted_on}): "
                "federation.newcomers=any lets such a site join"
            )

    def _too_few_left(
        self,
        call: RollCall,
        online: Collection[int],
        there: Mapping[int, Site],
        federation: FederationSettings,
    ) -> str:
        silent = {*online} - there.keys() - self.refused
        names = (registered(call.grid) or {}) | {s.node_id: s.name for s in self.sites}
        return (
            f"{len(there)} sites are left where federation.min_replies asks for {federation.min_replies}, "
            f"and none came back within {federation.join_deadline:g} s"
            f"{f' ({describe_silent(silent, names)})' if silent else ''}"
        )

    @property
    def data_fields(self) -> dict[str, str]:
        """The fields by which an instruction names the run's initial data; empty if each site has its own."""
        divided = [*self.data] == [""] and any(site.data for site in self.sites[:1])
        return {DATA: self.data[""][:16]} if divided else {}

    def check_memory(self, site: Site, said: str = OTHER_ROUNDS) -> None:
        """Stop a simulation one of whose devices lacks what it wrote in this very run, or reads other data.

        A real site may have lost its memory, and the run continues without it. A simulated device has not: it works on
        another machine of the cluster than before, and so would the others, round for round.
        """
        # By all of them: a site says itself what it is a node of.
        simulated = engine_of([*self.sites, site]) != SUPERLINK
        if simulated and said.startswith(OTHER_DATA):
            raise FederationError(said)
        if simulated and site.name in self.accepted_this_process and said.startswith(OTHER_ROUNDS):
            raise FederationError(
                f"{site.name} lacks what it remembered of its round {self.last_accepted_round[site.name]} of this run: "
                "the machines that simulate it do not share the run's record, which stores it; name a folder that "
                "all of them share (output-dir=/shared/runs), or simulate on one machine"
            )

    def note_alike(self, what: str, failed: Mapping[str, str], well: Collection[str]) -> None:
        """Log how many sites failed alike, if any did; stop a simulation all of whose sites raised the same error.

        A further round would raise it again. Over real machines what sites send stops no run.
        """
        if len(reasons := {*failed.values()}) < len(failed):
            logger.warning("%s: rejected %s", what, reasons_in_words(failed))
        raised = len(reasons) == 1 and all(why.startswith(EXCEPTION) for why in reasons)
        if raised and not well and engine_of(self.sites) != SUPERLINK:
            error = reasons.pop().removeprefix(EXCEPTION).strip()
            raise FederationError(f"{what}: all {len(failed)} sites failed alike: {error}")

    def log_memory_loss(self, server_round: int, upload: Upload) -> None:
        """Log what a site says of its memory where that is not what this run's last round left."""
        site, figures = upload.site.name, upload.metrics
        if MEMORY_LOST in figures:
            self.check_memory(upload.site)
            logger.warning(
                "round %d: %s lost its memory of past rounds and started afresh", server_round, site
            )
        if WENT_BACK in figures:
            logger.warning(
                "round %d: %s has been at round %.0f of this run, and went back with the server to its round %d: the "
                "record is older than what the site has seen of it",
                *(server_round, site, figures[WENT_BACK], self.last_accepted_round.get(site, 0)),
            )
