"""The roll call of a simulation in this process: one node answers for all, of which each holds a partition."""

from __future__ import annotations

from collections.abc import Sequence
from logging import getLogger

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from common.code.fingerprint import source_fingerprint
from common.sites import IN_PROCESS, Site, site_name
from common.specs.names import DATA
from strategies.exchange.roll_call import Question, absurd

logger = getLogger("flwr")

NODES_BY_PARTITION = "nodes_by_partition"
"""The attribute of a grid whose node i holds partition i and differs from the others in nothing else."""


def answers_of_all(grid: Grid, question: Question) -> dict[int, Site]:
    """Return every node's answer to the roll call by node id; none where they have to be asked one by one.

    That is a message and a reply for all of them. What is wrong with an answer, a site says when it is asked by itself.
    """
    nodes: Sequence[int] = getattr(grid, NODES_BY_PARTITION, ())
    if not nodes:
        return {}
    asked = {"class-counts": question.classes > 0, "held-out": question.held_out}
    content = RecordDict({"config": ConfigRecord({**asked})})
    message = Message(content, nodes[0], "query.partitions", group_id="roll-call")
    (reply,) = grid.pull_messages(grid.push_messages([message]))
    if reply.has_error():
        logger.debug("one node does not answer for all: %s", reply.error.reason)
        return {}
    if reply.content.config_records["about"]["source"] != source_fingerprint():
        return {}
    sites = _sites(nodes, reply, question)
    return {} if any(absurd(site, question) for site in sites) else {s.node_id: s for s in sites}


def _sites(nodes: Sequence[int], reply: Message, question: Question) -> list[Site]:
    sizes = {
        name: array.numpy().tolist() for name, array in reply.content.array_records["sizes"].items()
    }
    nothing = [0] * len(nodes)
    data = str(reply.content.config_records["about"][DATA])
    columns = (
        sizes["num-examples"],
        sizes["class-counts"] if question.classes else [()] * len(nodes),
        sizes["num-held-out"] if question.held_out else nothing,
    )
    return [
        Site(
            name=site_name({"partition-id": index}),
            node_id=node_id,
            examples=examples,
            partition=index,
            partitions=len(nodes),
            class_counts=tuple(counts),
            engine=IN_PROCESS,
            held_out=held,
            data=data,
        )
        for index, (node_id, examples, counts, held) in enumerate(zip(nodes, *columns, strict=True))
    ]
