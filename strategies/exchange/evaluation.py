"""A round's weights evaluated at the sites: requested with the next round's instructions, one exchange instead of two.

The weights that a round begins with are those that the round before ended with. Where a site is sent them anyway,
it judges them before it trains; where it is not, or is sent something else, it gets a separate message after the
others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)

from common.errors import PayloadError
from common.sites import Site
from common.specs.updates import EVALUATION, REASON, TAKEN, TRAINING_FAILED
from strategies.exchange.lengths import absurd_losses
from strategies.exchange.replies import (
    EVALUATION_RECORDS,
    Outcome,
    SiteEvaluation,
    note_failure,
    read_evaluation,
    require_names,
)

logger = getLogger("flwr")

#: Flower's own code for a ClientApp that raised
_RAISED = 2


@dataclass
class EvaluationRequest:
    """The questions to sites for their figures of a round's weights, and their answers.

    Attributes
    ----------
    server_round : int
        The round whose weights they are.
    outcome : Outcome
        The round's, in which answers and refusals are noted, also after the next round has started.
    sites : sequence of Site
        The sites to ask.
    measure : str
        The run's: by what else than accuracy sites are to judge.
    arrays : ArrayRecord
        The weights, as they are sent.
    fields : mapping
        The configuration of each question.
    taken : mapping of str to int or None
        Where sites evaluate with what they remember, the round of each one's memory to take it from.
    answers : dict of int to Message
        What came, by node.
    """

    server_round: int = 0
    outcome: Outcome = field(default_factory=Outcome)
    sites: Sequence[Site] = ()
    measure: str = "accuracy"
    arrays: ArrayRecord = field(default_factory=ArrayRecord)
    fields: Mapping[str, Any] = field(default_factory=dict)
    taken: Mapping[str, int] | None = None
    answers: dict[int, Message] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start without pending questions."""
        self._open = {site.node_id: site for site in self.sites}

    def question_beside(self, body: ArrayRecord, site: Site) -> dict[str, ConfigRecord]:
        """Return the question that goes with an instruction with ``body``: none unless that is the weights."""
        if site.node_id not in self._open or not self._is_asked_of(body):
            return {}
        return {EVALUATION: self._question(self._open.pop(site.node_id))}

    def _is_asked_of(self, body: ArrayRecord) -> bool:
        return body is self.arrays or (
            len(body) == len(self.arrays)
            and all(
                a.data == b.data for a, b in zip(body.values(), self.arrays.values(), strict=True)
            )
        )

    def _question(self, site: Site) -> ConfigRecord:
        memory = {} if self.taken is None else {TAKEN: self.taken.get(site.name, 0)}
        return ConfigRecord({**self.fields, **memory})

    def messages(self) -> list[Message]:
        """Return the questions that no instruction carries, as separate messages; no site is asked twice."""
        left, self._open = self._open, {}
        return [
            Message(
                RecordDict({"arrays": self.arrays, "config": self._question(site)}),
                site.node_id,
                MessageType.EVALUATE,
                group_id=str(self.server_round),
            )
            for site in left.values()
        ]

    def take_answer(self, asked: Message, reply: Message) -> Message:
        """Keep what answers a question, and return the reply to the instruction that carried it; others as they are."""
        node = asked.metadata.dst_node_id
        if asked.metadata.message_type == MessageType.EVALUATE:
            self.answers[node] = reply
        elif EVALUATION in asked.content:
            self.answers[node], reply = _parted(reply, asked)
        return reply

    @property
    def replies(self) -> list[Message]:
        """The answers in the order of the sites."""
        return [self.answers[site.node_id] for site in self.sites if site.node_id in self.answers]

    def mean(
        self, replies: Iterable[Message], classes: int, *, any_record: bool
    ) -> MetricRecord | None:
        """Return the sites' mean figures, each site counting the images that it said it holds out; None without any.

        A loss far above that of guessing among ``classes`` is implausible. With ``any_record`` it may hold records of
        any name.
        """
        names = None if any_record else EVALUATION_RECORDS
        figures = self._read(replies, names, classes)
        reasons = absurd_losses([one.loss for one in figures.values()], classes)
        for name, reason in zip(list(figures), reasons, strict=True):
            if reason is not None:
                del figures[name]
                self._leave_out(name, reason)
        self.outcome.evaluated.update(figures)
        total = sum(one.examples for one in figures.values())
        if not total:
            return None
        return MetricRecord(
            {
                key: sum(one.examples * getattr(one, key) for one in figures.values()) / total
                for key in ("accuracy", "loss")
            }
        )

    def _read(
        self, replies: Iterable[Message], names: Collection[str] | None, classes: int
    ) -> dict[str, SiteEvaluation]:
        asked = {site.node_id: site for site in self.sites}
        figures: dict[str, SiteEvaluation] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            site = asked.get(node)
            try:
                if site is None:
                    raise PayloadError("no evaluation was requested of it")
                require_names(reply, names)
                figures[site.name] = read_evaluation(reply, site.held_out, classes, self.measure)
            except PayloadError as error:
                self._leave_out(site.name if site else f"node {node}", str(error))
        return figures

    def _leave_out(self, site: str, reason: str) -> None:
        what = f"round {self.server_round}: rejected the evaluation of"
        note_failure(self.outcome.unevaluated, site, reason, what)


def _parted(reply: Message, asked: Message) -> tuple[Message, Message]:
    """Return a reply's answer to a question, and to the instruction that carried it, each as if it came by itself."""
    if reply.has_error():
        return reply, reply
    content = reply.content
    failed, judged = content.get(TRAINING_FAILED), content.get(EVALUATION)
    rest = {k: v for k, v in content.items() if k not in (TRAINING_FAILED, EVALUATION)}
    figures = RecordDict({"metrics": judged}) if isinstance(judged, MetricRecord) else RecordDict()
    return (
        _failure(judged, asked) or Message(figures, reply_to=asked),
        _failure(failed, asked) or Message(RecordDict(rest), reply_to=asked),
    )


def _failure(record: object, asked: Message) -> Message | None:
    """Return an error reply to ``asked`` if ``record`` gives a reason for one."""
    if not isinstance(record, ConfigRecord):
        return None
    return Message(Error(code=_RAISED, reason=str(record.get(REASON, ""))), reply_to=asked)
