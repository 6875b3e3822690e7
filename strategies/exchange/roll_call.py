"""Who is there: one query a node, asked at the start and again when the membership changes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from common.code.fingerprint import source_fingerprint
from common.errors import FederationError, one_line
from common.privacy.head import Head
from common.privacy.told import HEADS, all_written
from common.sites import ENGINES, SUPERLINK, Site, is_site_name, partition_name
from common.specs.names import DATA
from strategies.exchange.naming import misnamed, registered
from strategies.exchange.replies import reason_of, require_records
from strategies.exchange.sending import NO_REPLY, NOT_SENT, exchange

#: names of the records of an answer
_RECORDS = frozenset({"about", "sizes"})

#: error replies that speak of a node's connection and not of the node: Flower's own for one that is gone or whose
#: process died (a SuperNode that was killed is listed as online for up to a minute), and ours
_AWAY = {3, 4, 5, 8, NO_REPLY, NOT_SENT}


class NoAnswer(FederationError):
    """A node that did not answer the roll call: it may answer the next one."""


class Refused(FederationError):
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
    heads : mapping of str to Head
        The newest head of each site's privacy ledger that the server saw; a site whose ledger lacks its own refuses.
    folders : bool
        Whether partitions are simulated sites' own folders, which draw by their names as real ones do.
    """

    classes: int
    held_out: bool
    max_examples: int
    heads: Mapping[str, Head] = field(default_factory=dict)
    folders: bool = False


def ask(
    grid: Grid, node_ids: Sequence[int], question: Question, *, deadline: float
) -> list[Site | NoAnswer | Refused]:
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
        Refused(odd[node_id]) if node_id in odd else answer
        for node_id, answer in zip(node_ids, answers, strict=True)
    ]


def composed(node_ids: Iterable[int], question: Question) -> list[Message]:
    """Return the queries that nodes answer with their names and sizes; all hold the same content, written once."""
    heads = {HEADS: all_written(question.heads)} if question.heads else {}
    config = ConfigRecord(
        {"class-counts": question.classes > 0, "held-out": question.held_out, **heads}
    )
    content = RecordDict({"config": config})
    return [Message(content, i, "query.roll_call", group_id="roll-call") for i in node_ids]


def read_answer(node_id: int, reply: Message, question: Question) -> Site | NoAnswer | Refused:
    """Return the site that ``node_id`` says it is, or why it takes no part: it did not answer, or is refused."""
    if reply.has_error():
        sentence = f"node {node_id} failed the roll call: {reason_of(reply)}"
        return NoAnswer(sentence) if reply.error.code in _AWAY else Refused(sentence)
    try:
        require_records(reply, _RECORDS)
        about, sizes = reply.content["about"], reply.content["sizes"]
        if not (isinstance(about, ConfigRecord) and isinstance(sizes, MetricRecord)):
            raise TypeError("other kinds of records")
        site, source = _site(node_id, about, sizes, question), str(about["source"])
    except Exception as error:  # whatever is wrong with an answer is its node's affair
        return Refused(
            f"node {node_id} answered the roll call with something else ({_short(error)}): run the same release on "
            "the server and on every device"
        )
    if source != source_fingerprint():
        return Refused(
            f"site '{site.name}' runs source {one_line(source[:16])}, the server runs {source_fingerprint()}: their "
            "results would not belong together; give both the same release"
        )
    problem = absurd(site, question)
    return site if problem is None else Refused(f"site '{site.name}' {problem}")


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


def absurd(site: Site, question: Question) -> str | None:
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
