"""What the sites make of a round's weights on what they hold out: asked with one round, answered with the next."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict

from common.errors import PayloadError
from common.learning.run import Run
from common.sites import Site
from common.specs.names import TAKEN
from strategies.exchange.replies import (
    EVALUATION_RECORDS,
    Outcome,
    SiteEvaluation,
    read_evaluation,
    require_records,
)
from strategies.exchange.serialising import Serialiser, weights_from
from strategies.plausible import absurd_losses

logger = getLogger("flwr")


@dataclass(frozen=True)
class Evaluation:
    """Who was asked about a round's weights.

    Attributes
    ----------
    outcome : Outcome
        The round's: what is answered, or refused, is noted there, also when the next round has begun.
    """

    outcome: Outcome = field(default_factory=Outcome)
    sites: Sequence[Site] = ()

    def compose(
        self,
        run: Run,
        arrays: ArrayRecord,
        fields: Mapping[str, Any],
        taken: Mapping[str, int] | None,
    ) -> list[Message]:
        """Return a message for each site; ``fields`` are its configuration.

        Where sites judge with what they remember, ``taken`` has the round of each one's memory to take it from.
        """
        serialiser = Serialiser(run.config.wire.compression, list(arrays.values()))
        body = serialiser.record(weights_from(run, arrays))
        group = str(fields["server-round"])
        messages = []
        for site in self.sites:
            memory = {} if taken is None else {TAKEN: taken.get(site.name, 0)}
            content = RecordDict({"arrays": body, "config": ConfigRecord({**fields, **memory})})
            message = Message(content, site.node_id, MessageType.EVALUATE, group_id=group)
            messages.append(message)
        return messages

    def mean(
        self, server_round: int, replies: Iterable[Message], classes: int, *, any_record: bool
    ) -> MetricRecord | None:
        """Return the sites' mean figures, each site counting the images that it said it holds out; None without any.

        A loss is absurd beside that of guessing among ``classes``. With ``any_record`` a reply may hold records of any
        name.
        """
        names = None if any_record else EVALUATION_RECORDS
        figures = self._read(server_round, replies, names)
        reasons = absurd_losses([one.loss for one in figures.values()], classes)
        for name, reason in zip(list(figures), reasons, strict=True):
            if reason is not None:
                del figures[name]
                self._leave_out(server_round, name, reason)
        self.outcome.evaluated.update(figures)
        total = sum(one.examples for one in figures.values())
        if not total:
            return None
        sums = {
            "accuracy": sum(one.examples * one.accuracy for one in figures.values()),
            "loss": sum(one.examples * one.loss for one in figures.values()),
        }
        return MetricRecord({key: value / total for key, value in sums.items()})

    def _read(
        self, server_round: int, replies: Iterable[Message], names: Collection[str] | None
    ) -> dict[str, SiteEvaluation]:
        asked = {site.node_id: site for site in self.sites}
        figures: dict[str, SiteEvaluation] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            site = asked.get(node)
            try:
                if site is None:
                    raise PayloadError("it was not asked")
                require_records(reply, names)
                figures[site.name] = read_evaluation(reply, site.held_out)
            except PayloadError as error:
                self._leave_out(server_round, site.name if site else f"node {node}", str(error))
        return figures

    def _leave_out(self, server_round: int, site: str, reason: str) -> None:
        self.outcome.unevaluated[site] = reason
        logger.warning("round %d: rejected the evaluation of %s: %s", server_round, site, reason)
