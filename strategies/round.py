"""One round, from its questions to its record: ask, wait, accept, update, evaluate, record.

`Rounds.run` is all of it. It calls only Flower's own hooks, so it can drive any Flower Strategy; what
the hooks of Nectar's methods do is in `strategies.base` (the method's part) and `strategies.exchange.open_round`
(messages, and what is accepted of replies).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from common.learning.task import Evaluation
from strategies.exchange.evaluation import EvaluationRequest
from strategies.exchange.exchange import Traffic, exchange
from strategies.exchange.replies import Outcome
from strategies.federated import Federated

T = TypeVar("T")


@dataclass(frozen=True)
class RoundResult:
    """Everything about one finished round; round 0 is the initial model's evaluation.

    ``updated`` is false where the strategy made nothing of the replies, and the weights stayed as they were.
    """

    server_round: int
    arrays: ArrayRecord
    test: Evaluation | None
    validation: Evaluation | None
    train: MetricRecord | None = None
    outcome: Outcome = field(default_factory=Outcome)
    bytes_down: dict[str, int] = field(default_factory=dict)
    bytes_up: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    awaits_sites: bool = False
    models: Mapping[str, Evaluation] = field(default_factory=dict)
    updated: bool = True


@dataclass(frozen=True)
class SitesFigures:
    """The sites' evaluation of a round's weights, which comes with the next round's replies."""

    server_round: int
    mean: MetricRecord | None
    outcome: Outcome
    bytes_down: dict[str, int] = field(default_factory=dict)
    bytes_up: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Judgement:
    """The server's evaluation of a round: the mean over the learned models, and each one's, if several.

    ``models`` also has the other models that are evaluated.
    """

    test: Evaluation | None = None
    validation: Evaluation | None = None
    models: Mapping[str, Evaluation] = field(default_factory=dict)


#: evaluates at the server what was learned and the other models, by name
Evaluator = Callable[[Mapping[str, ArrayRecord], Mapping[str, ArrayRecord]], Judgement]

#: called after a round; the sites' figures follow if it ``awaits_sites``
Callback = Callable[[RoundResult], None]

#: called with the sites' figures of an earlier round
FiguresCallback = Callable[[SitesFigures], None]


@dataclass(frozen=True)
class Rounds:
    """Runs one round after the other.

    The sites evaluate a round's weights when they get the next round's instructions: one exchange a round, not two.

    Parameters
    ----------
    evaluator : Evaluator
        The server's own evaluation.
    callbacks : sequence of Callback
        Called with each round's result, once it is there.
    figures_callbacks : sequence of FiguresCallback
        Called with the sites' figures of a round, which come with the next round's replies.
    """

    strategy: Federated
    grid: Grid
    evaluator: Evaluator
    callbacks: Sequence[Callback] = ()
    figures_callbacks: Sequence[FiguresCallback] = ()

    def run(self, server_round: int, arrays: ArrayRecord, *, evaluated: bool) -> ArrayRecord:
        """Run a round from ``arrays`` and return its weights; ``evaluated``: whether they are evaluated."""
        strategy, traffic, clock = self.strategy, Traffic(), Clock()
        strategy.traffic = traffic
        asked = strategy.members.evaluation  # about the weights of the round before
        names = {site.node_id: site.name for site in (*asked.sites, *strategy.sites)}

        # Ask: an instruction for each of the round's sites, and in it the question about the last round's weights.
        instructions = [*strategy.configure_train(server_round, arrays, ConfigRecord(), self.grid)]
        sent = [*instructions, *asked.messages()]
        clock.lap("configure")

        # Wait: replies as they come, up to the deadline; the sites work while the ones before are read.
        came = self._exchange(sent, traffic, strategy.round.max_reply_bytes)
        replies = map(asked.take_answer, sent, _Awaited(came, clock))

        # Accept and update: the strategy reads one reply after the other, and makes new weights of what it accepts.
        try:
            new, train = strategy.aggregate_train(server_round, islice(replies, len(instructions)))
            for _ in replies:  # those after the last one that was requested
                pass
        finally:
            if len(asked.answers) == len(asked.sites):
                self._report_figures(asked)
        arrays = arrays if new is None else new
        clock.lap("aggregate")

        # Evaluate: at the server now, at the sites with the next round's instructions.
        judged = Judgement()
        strategy.members.evaluation = EvaluationRequest()
        if evaluated:
            strategy.ask_for_evaluation(server_round, arrays)
            judged = self.evaluator(strategy.global_models(arrays), strategy.extra_models(arrays))
        clock.lap("evaluate")

        # Record: the line, the pictures and the checkpoint are the callbacks'.
        if failed := strategy.outcome.rejected:
            strategy.members.note_alike(f"round {server_round}", failed, strategy.outcome.accepted)
        down, up = _by_name(traffic, names)
        result = RoundResult(
            server_round,
            arrays,
            judged.test,
            judged.validation,
            train,
            strategy.outcome,
            down,
            up,
            clock.seconds,
            awaits_sites=bool(strategy.members.evaluation.sites),
            models=judged.models,
            updated=new is not None,
        )
        for callback in self.callbacks:
            callback(result)
        return arrays

    def close(self) -> None:
        """Ask for the figures of the last round's weights, which no other instruction carries."""
        asked, traffic = self.strategy.members.evaluation, Traffic()
        sent = asked.messages()
        for _ in map(asked.take_answer, sent, self._exchange(sent, traffic)):
            pass
        self._report_figures(asked, traffic)

    def _exchange(
        self, messages: Sequence[Message], traffic: Traffic, max_bytes: Sequence[int] = ()
    ) -> Iterator[Message]:
        config = self.strategy.run.config
        return exchange(
            self.grid,
            messages,
            deadline=config.federation.round_deadline,
            max_bytes=max_bytes,
            wave=config.federation.wave,
            traffic=traffic,
            again=not config.private,
        )

    def _report_figures(self, asked: EvaluationRequest, traffic: Traffic | None = None) -> None:
        """Report the sites' evaluation of a round's weights; its own messages are reported with the round."""
        if not asked.sites:
            return
        strategy, failed = self.strategy, asked.outcome.unevaluated
        mean = strategy.aggregate_evaluate(asked.server_round, asked.replies)
        for site in strategy.sites:
            if reason := failed.get(site.name):
                strategy.members.check_memory(site, reason)
        if failed:
            what = f"evaluation of round {asked.server_round}"
            strategy.members.note_alike(what, failed, asked.outcome.evaluated)
        passed = _by_name(traffic or Traffic(), {s.node_id: s.name for s in asked.sites})
        figures = SitesFigures(asked.server_round, mean, asked.outcome, *passed)
        for callback in self.figures_callbacks:
            callback(figures)


def _by_name(traffic: Traffic, names: Mapping[int, str]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the bytes down and up by the sites' names."""
    down, up = ({names[i]: n for i, n in account.items()} for account in (traffic.down, traffic.up))
    return down, up


class Clock:
    """Seconds by phase; waiting for replies is counted separately from the work in between."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Add the time since the last lap to ``phase``."""
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._last
        self._last = now


class _Awaited(Iterator[T]):
    """``items``, of which the time until each is there is booked as ``devices``; a generator would keep each."""

    def __init__(self, items: Iterator[T], clock: Clock) -> None:
        self._items, self._clock = items, clock

    def __next__(self) -> T:
        self._clock.lap("aggregate")
        try:
            return next(self._items)
        finally:
            self._clock.lap("devices")
