"""An evaluation that rides on the next round's instructions: one exchange a round instead of two.

The weights that a round begins with are those that the round before ended with. Where a site is sent them anyway, it
judges them before it trains; where it is not, or is sent something else, it gets a message of its own beside the
others. Whoever composed the messages, and whoever reads the replies, sees two exchanges as before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from flwr.app import ConfigRecord, Error, Message, RecordDict

from common.specs.names import EVALUATION, REASON, TRAINING_FAILED

#: Flower's own code for a ClientApp that raised
_RAISED = 2


class Riders:
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
    """Whether the weights to judge are those that go along, and nothing but they and a configuration is asked with."""
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
