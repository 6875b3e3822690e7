"""A round's weights evaluated at the sites: asked for with the next round's instructions, one exchange instead of two.

The weights that a round begins with are those that the round before ended with. Where a site is sent them anyway,
it judges them before it trains; where it is not, or is sent something else, it gets a message of its own after the
others. Whoever composed the messages, and whoever reads the replies, sees two exchanges.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
from common.learning.run import Run
from common.sites import Site
from common.specs.updates import EVALUATION, REASON, TAKEN, TRAINING_FAILED
from strategies.exchange.instructions import Serialiser, weights_from
from strategies.exchange.judging import absurd_losses
from strategies.exchange.replies import (
    EVALUATION_RECORDS,
    Outcome,
    SiteEvaluation,
    note_failure,
    read_evaluation,
    require_records,
)

logger = getLogger("flwr")

#: Flower's own code for a ClientApp that raised
_RAISED = 2


@dataclass(frozen=True)
class EvaluationRequest:
    """Who was asked about a round's weights.

    Attributes
    ----------
    outcome : Outcome
        The round's: what is answered, or refused, is noted there, also when the next round has begun.
    measure : str
        The run's: by what else than accuracy sites are to judge.
    """

    outcome: Outcome = field(default_factory=Outcome)
    sites: Sequence[Site] = ()
    measure: str = "accuracy"

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
        serialiser = Serialiser(list(arrays.values()))
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

        A loss is implausible beside that of guessing among ``classes``. With ``any_record`` a reply may hold records of
        any name.
        """
        names = None if any_record else EVALUATION_RECORDS
        figures = self._read(server_round, replies, names, classes)
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
        self,
        server_round: int,
        replies: Iterable[Message],
        names: Collection[str] | None,
        classes: int,
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
                figures[site.name] = read_evaluation(reply, site.held_out, classes, self.measure)
            except PayloadError as error:
                self._leave_out(server_round, site.name if site else f"node {node}", str(error))
        return figures

    def _leave_out(self, server_round: int, site: str, reason: str) -> None:
        what = f"round {server_round}: rejected the evaluation of"
        note_failure(self.outcome.unevaluated, site, reason, what)


class PiggybackEvaluation:
    """The questions of an evaluation among the instructions of the next round.

    Parameters
    ----------
    questions : sequence of Message
        What was composed to ask for the evaluation.
    instructions : sequence of Message
        The next round's; those that carry a question are changed.
    """

    def __init__(self, questions: Sequence[Message], instructions: Sequence[Message]) -> None:
        self._questions, self._instructions = questions, instructions
        by_node = {m.metadata.dst_node_id: i for i, m in enumerate(instructions)}
        self._carried: dict[int, int] = {}
        self._alone: list[int] = []
        for number, question in enumerate(questions):
            carrier = by_node.get(question.metadata.dst_node_id)
            if carrier is None or not _carries(instructions[carrier], question):
                self._alone.append(number)
                continue
            self._carried[carrier] = number
            instructions[carrier].content[EVALUATION] = question.content["config"]
            question.content["arrays"] = instructions[carrier].content["arrays"]
        self._answers: dict[int, Message] = {}

    @property
    def messages(self) -> list[Message]:
        """What is to be sent: the instructions, and behind them the questions that none of them carries."""
        return [*self._instructions, *(self._questions[number] for number in self._alone)]

    def instructions_replies(self, replies: Iterable[Message]) -> Iterator[Message]:
        """Yield the replies to the instructions, of all ``replies`` in the order of ``messages``; keep the others."""
        for place, reply in enumerate(replies):
            if place >= len(self._instructions):
                self._answers[self._alone[place - len(self._instructions)]] = reply
                continue
            number = self._carried.get(place)
            held = [reply]
            if number is not None:
                held[0], judged = _parted(reply, self._instructions[place], self._questions[number])
                self._answers[number] = judged
            del reply
            yield held.pop()

    @property
    def complete(self) -> bool:
        """Whether every question has been answered, or answered for."""
        return len(self._answers) == len(self._questions)

    @property
    def answers(self) -> list[Message]:
        """The replies to the questions, in their order."""
        return [self._answers[number] for number in sorted(self._answers)]


def _carries(instruction: Message, question: Message) -> bool:
    """Return whether the weights to judge are those that go along, and nothing else is asked with them."""
    sent, asked = instruction.content.array_records, question.content.array_records
    if set(question.content) != {"arrays", "config"} or sent.keys() != asked.keys():
        return False
    one, other = sent["arrays"], asked["arrays"]
    return one is other or (
        len(one) == len(other)
        and all(a.data == b.data for a, b in zip(one.values(), other.values(), strict=True))
    )


def _parted(reply: Message, instruction: Message, question: Message) -> tuple[Message, Message]:
    """Return a reply's two parts, as if each had been asked for by itself."""
    if reply.has_error():
        return reply, Message(reply.error, reply_to=question)
    content = reply.content
    failed, judged = content.get(TRAINING_FAILED), content.get(EVALUATION)
    rest = {k: v for k, v in content.items() if k not in (TRAINING_FAILED, EVALUATION)}
    return (
        _failure(failed, instruction) or Message(RecordDict(rest), reply_to=instruction),
        _failure(judged, question)
        or Message(RecordDict({} if judged is None else {"metrics": judged}), reply_to=question),
    )


def _failure(record: object, asked: Message) -> Message | None:
    """Return an error reply to ``asked`` if ``record`` gives a reason for one."""
    if not isinstance(record, ConfigRecord):
        return None
    return Message(Error(code=_RAISED, reason=str(record.get(REASON, ""))), reply_to=asked)
