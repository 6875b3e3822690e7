"""Who is there: one query a node, asked at the start and again when the membership changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from common.errors import FederationError, one_line
from common.fingerprint import source_fingerprint
from common.sites import ENGINES, SITE_NAME, Site
from strategies.exchange.replies import reason_of
from strategies.exchange.sending import NO_REPLY, NOT_SENT, exchange

#: error replies that speak of a node's connection and not of the node: Flower's own for one that is gone or whose
#: process died (a SuperNode that was killed is listed as online for up to a minute), and ours
_AWAY = {3, 4, 5, 8, NO_REPLY, NOT_SENT}


class NoAnswer(FederationError):
    """A node that did not answer the roll call: it may answer the next one."""


def ask(
    grid: Grid, node_ids: Sequence[int], *, classes: int, deadline: float
) -> list[Site | NoAnswer]:
    """Ask ``node_ids`` for their names and sizes; for counts of ``classes`` classes only where that is not 0.

    Returns
    -------
    list of Site or NoAnswer
        One for each node, in the order of ``node_ids``.

    Raises
    ------
    FederationError
        If a node runs other source than this server, refuses, or answers nonsense.
    """
    messages = [question(node_id, classes) for node_id in node_ids]
    replies = exchange(grid, messages, deadline=deadline)
    return [
        read_answer(node_id, reply, classes)
        for node_id, reply in zip(node_ids, replies, strict=True)
    ]


def question(node_id: int, classes: int) -> Message:
    """Compose the query that a node answers with its name and sizes; counts of ``classes`` classes if not 0."""
    config = ConfigRecord({"class-counts": classes > 0})
    return Message(RecordDict({"config": config}), node_id, "query.roll_call", group_id="roll-call")


def read_answer(node_id: int, reply: Message, classes: int) -> Site | NoAnswer:
    """Return the site that ``node_id`` says it is, or that it did not answer.

    Raises
    ------
    FederationError
        If it refuses, answers nonsense, or runs other source than this server.
    """
    if reply.has_error():
        sentence = f"node {node_id} failed the roll call: {reason_of(reply)}"
        if reply.error.code in _AWAY:
            return NoAnswer(sentence)
        raise FederationError(sentence)
    try:
        about, sizes = reply.content.config_records["about"], reply.content.metric_records["sizes"]
        name, source, engine = (str(about[key]) for key in ("site", "source", "engine"))
        counts = sizes.get("class-counts", [])
        if not SITE_NAME.fullmatch(name):
            raise ValueError(f"the site name {name[:80]!r}")
        if engine not in ENGINES:
            raise ValueError(f"the engine {engine[:80]!r}")
        if classes and (not isinstance(counts, list) or len(counts) != classes):
            raise ValueError(f"no counts of {classes} classes")
        site = Site(
            name=name,
            node_id=node_id,
            examples=_whole(sizes["num-examples"]),
            partition=int(about["partition-id"]),  # type: ignore[arg-type]
            partitions=_whole(sizes["num-partitions"]),
            class_counts=tuple(map(_whole, counts)) if isinstance(counts, list) else (),
            engine=engine,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FederationError(
            f"node {node_id} answered the roll call with something else ({error!r}): run the same release on "
            "the server and on every device"
        ) from None
    if source != source_fingerprint():
        raise FederationError(
            f"site '{name}' runs source {one_line(source[:16])}, the server runs {source_fingerprint()}: their results "
            "would not belong together; give both the same release"
        )
    return site


def _whole(value: object) -> int:
    if not isinstance(value, int | float) or value != int(value) or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return int(value)


def expected_sites(sites: Iterable[Site]) -> int:
    """Return how many partitions the sites speak of; 0 where they hold data of their own.

    Raises
    ------
    FederationError
        If they disagree.
    """
    numbers = {site.partitions for site in sites}
    if len(numbers) > 1:
        raise FederationError(
            f"the nodes disagree on num-partitions ({', '.join(map(str, sorted(numbers)))}): start every "
            "SuperNode with the same one"
        )
    return numbers.pop() if numbers else 0
