"""The rounds: configure, exchange, aggregate, evaluate, tell the callbacks; nothing a method would know.

Only Flower's own hooks are called, so whatever is a Flower Strategy can be driven from here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from logging import getLogger
from statistics import fmean
from types import MappingProxyType
from typing import TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from common.division import Division
from common.errors import FederationError
from common.learning.compute import return_freed_memory
from common.learning.task import Evaluation
from common.learning.training import evaluate
from common.models import Classifier
from common.samples.inputs import Samples, samples
from common.settings.sections import FederationSettings
from common.sites import Site, in_site_order
from server_app.data_of_run import require_data_of
from strategies.exchange.inbox import Riders, Traffic, exchange, nodes_online
from strategies.exchange.replies import Outcome
from strategies.exchange.roll_call import NoAnswer, ask, expected_sites, said_of_silent
from strategies.federated import Federated

logger = getLogger("flwr")
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
    """What the sites made of a round's weights; they come when the next round's replies are there."""

    server_round: int
    mean: MetricRecord | None
    outcome: Outcome
    bytes_down: dict[str, int] = field(default_factory=dict)
    bytes_up: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Judgement:
    """What the server makes of a round: the mean over the models that were learned, and each one's, if several.

    ``models`` has those judged beside them, too.
    """

    test: Evaluation | None = None
    validation: Evaluation | None = None
    models: Mapping[str, Evaluation] = field(default_factory=dict)


#: evaluates at the server what was learned, and what is judged beside it, by name
Evaluator = Callable[[Mapping[str, ArrayRecord], Mapping[str, ArrayRecord]], Judgement]
#: is told of a round that is done; the sites' figures follow if it ``awaits_sites``
Callback = Callable[[RoundResult], None]
#: is told the sites' figures of a round that was told before
FiguresCallback = Callable[[SitesFigures], None]


def federate(
    strategy: Federated,
    grid: Grid,
    arrays: ArrayRecord,
    *,
    first_round: int,
    last_round: int,
    federation: FederationSettings,
    evaluator: Evaluator,
    every: int = 1,
    callbacks: Sequence[Callback] = (),
    figures_callbacks: Sequence[FiguresCallback] = (),
    unjudged: bool = False,
) -> ArrayRecord:
    """Run rounds ``first_round`` to ``last_round`` from ``arrays`` and return the last weights.

    The strategy has made its roll call (``ensure_roll_call``). Round 0, the evaluation of the start, is part of
    a run that begins at round 1 and of no resumed one. A round is one exchange: its weights' evaluation at the sites
    rides on the next round's instructions (`strategies.exchange.inbox`), the last one's has an exchange of its own.
    Every ``every``-th round is evaluated, and ``last_round``.
    With ``unjudged`` the sites' figures of the round before ``first_round`` are still to come.

    Raises
    ------
    FederationError
        If a round ends with fewer valid replies than ``federation.min_replies``.
    """
    if first_round == 1:
        judged = evaluator(strategy.learned(arrays), strategy.beside(arrays))
        _tell(callbacks, RoundResult(0, arrays, judged.test, judged.validation))
    rounds = _Rounds(strategy, grid, federation, evaluator, callbacks, figures_callbacks)
    if unjudged:
        rounds.ask_for_evaluation(first_round - 1, arrays)
    for server_round in range(first_round, last_round + 1):
        update_membership(strategy, grid, federation)
        due = server_round % every == 0 or server_round == last_round
        arrays = rounds.run(server_round, arrays, evaluated=due)
        return_freed_memory()
    rounds.close()
    return arrays


@dataclass(frozen=True)
class _Evaluation:
    """The questions to the sites about a round's weights, until they have gone out and are answered."""

    server_round: int = 0
    questions: Sequence[Message] = ()
    outcome: Outcome = field(default_factory=Outcome)
    names: Mapping[int, str] = field(default_factory=dict)


class _Rounds:
    """One round after the other; the evaluation of a round's weights rides on the next one's instructions."""

    def __init__(
        self,
        strategy: Federated,
        grid: Grid,
        federation: FederationSettings,
        evaluator: Evaluator,
        callbacks: Sequence[Callback],
        figures_callbacks: Sequence[FiguresCallback],
    ) -> None:
        self._strategy, self._grid, self._federation = strategy, grid, federation
        self._evaluator, self._callbacks = evaluator, callbacks
        self._figures_callbacks = figures_callbacks
        self._open = _Evaluation()

    def ask_for_evaluation(self, server_round: int, arrays: ArrayRecord) -> None:
        """Compose what asks the sites for their figures of a round's weights."""
        strategy = self._strategy
        questions = strategy.configure_evaluate(server_round, arrays, ConfigRecord(), self._grid)
        names = {site.node_id: site.name for site in strategy.sites}
        self._open = _Evaluation(server_round, list(questions), strategy.outcome, names)

    def run(self, server_round: int, arrays: ArrayRecord, *, evaluated: bool) -> ArrayRecord:
        """Run a round from ``arrays``, tell of the last one's figures and of it, and return its weights."""
        strategy, traffic, clock = self._strategy, Traffic(), Clock()
        names = {**self._open.names, **{site.node_id: site.name for site in strategy.sites}}
        messages = strategy.configure_train(server_round, arrays, ConfigRecord(), self._grid)
        riders = Riders(self._open.questions, list(messages))
        clock.lap("configure")
        replies = riders.instructions_replies(
            clock.waiting(self._exchange(riders.messages, traffic, strategy.max_reply_bytes))
        )
        try:
            new, train = strategy.aggregate_train(server_round, replies)
            for _ in replies:  # those after the last one that was asked for
                pass
        finally:
            if riders.complete:
                self._tell_figures(riders.answers)
        arrays = arrays if new is None else new
        clock.lap("aggregate")
        judged = Judgement()
        if evaluated:
            self.ask_for_evaluation(server_round, arrays)
            judged = self._evaluator(strategy.learned(arrays), strategy.beside(arrays))
        clock.lap("evaluate")
        result = RoundResult(
            server_round,
            arrays,
            judged.test,
            judged.validation,
            train,
            strategy.outcome,
            *_by_name(traffic, names),
            clock.seconds,
            awaits_sites=bool(self._open.questions),
            models=judged.models,
            updated=new is not None,
        )
        _tell(self._callbacks, result)
        return arrays

    def close(self) -> None:
        """Ask for the figures of the last round's weights, which no other instruction carries."""
        traffic = Traffic()
        answers = list(self._exchange(self._open.questions, traffic))
        self._tell_figures(answers, traffic)

    def _exchange(
        self, messages: Sequence[Message], traffic: Traffic, max_bytes: Sequence[int] = ()
    ) -> Iterator[Message]:
        return exchange(
            self._grid,
            messages,
            deadline=self._federation.round_deadline,
            max_bytes=[*max_bytes, *[0] * (len(messages) - len(max_bytes))],
            wave=self._federation.wave,
            traffic=traffic,
            again=not self._strategy.run.config.private,
        )

    def _tell_figures(self, answers: Sequence[Message], traffic: Traffic | None = None) -> None:
        done, self._open = self._open, _Evaluation()
        if not done.questions:
            return
        mean = self._strategy.aggregate_evaluate(done.server_round, answers)
        for site in self._strategy.sites:
            if said := done.outcome.unevaluated.get(site.name):
                self._strategy.members.require_memory(site, said)
        passed = _by_name(traffic or Traffic(), done.names)
        figures = SitesFigures(done.server_round, mean, done.outcome, *passed)
        for callback in self._figures_callbacks:
            callback(figures)


def _by_name(traffic: Traffic, names: Mapping[int, str]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the bytes down and up by the sites' names."""
    down, up = ({names[i]: n for i, n in account.items()} for account in (traffic.down, traffic.up))
    return down, up


def update_membership(strategy: Federated, grid: Grid, federation: FederationSettings) -> None:
    """Ask nodes that were not there before for their names, and let go of those that are away.

    A newcomer that the roll call refuses is left out and logged. Too few nodes are waited for, up to the join
    deadline.

    Raises
    ------
    FederationError
        If fewer than ``min_replies`` nodes are there at the join deadline.
    """
    end = time.monotonic() + federation.join_deadline
    members = {site.node_id: site for site in strategy.sites}
    strategy.members.were_there |= {site.name for site in strategy.sites}
    while True:
        here = nodes_online(grid)
        if here is None:
            here = set(members)  # nobody is known to have come or gone
        if here == members.keys() and len(members) >= federation.min_replies:
            strategy.members.refused.clear()
            return
        # One that left and comes back is asked again; and a name may have been that of a node which has left now.
        if (members.keys() | strategy.members.refused) - here:
            strategy.members.refused.clear()
        for node_id in sorted(here - set(members) - strategy.members.refused):
            try:
                joined = _join(strategy, grid, node_id, members.values(), federation)
            except FederationError as error:
                if not isinstance(error, NoAnswer):
                    strategy.members.refused.add(node_id)
                logger.warning("node %d is left out: %s", node_id, error)
            else:
                members = {s.node_id: s for s in joined}
        members = {i: s for i, s in members.items() if i in here}
        if len(members) >= federation.min_replies:
            break
        if time.monotonic() >= end:
            raise FederationError(
                f"{len(members)} sites are left where federation.min_replies asks for {federation.min_replies}, "
                f"and none came back within {federation.join_deadline:g} s{_silent(strategy, grid, here, members)}"
            )
        time.sleep(1.0)
    known = {site.node_id for site in strategy.sites}
    for site in strategy.sites:
        if site.node_id not in members:
            logger.warning("site %s is away", site.name)
    strategy.members.sites = in_site_order(members.values())
    for site in strategy.sites:
        if site.node_id not in known:
            logger.info("site %s has joined", site.name)


def _silent(strategy: Federated, grid: Grid, here: set[int], members: Mapping[int, Site]) -> str:
    """Return a clause about nodes that are online and do not answer; nothing where there are none."""
    silent = here - members.keys() - strategy.members.refused
    names = {site.node_id: site.name for site in strategy.sites}
    return f" ({said_of_silent(grid, silent, names)})" if silent else ""


def _join(
    strategy: Federated,
    grid: Grid,
    node_id: int,
    members: Iterable[Site],
    federation: FederationSettings,
) -> list[Site]:
    """Return the members with ``node_id`` among them; a site that returns under a new node id replaces itself."""
    here = set(grid.get_node_ids())
    deadline = min(60.0, federation.round_deadline)
    (site,) = ask(grid, [node_id], strategy.question, deadline=deadline)
    if not isinstance(site, Site):
        raise site
    require_data_of(site, strategy.members.data, strategy.run.config.dataset)
    _require_counted_on(strategy, site, federation)
    others = [m for m in members if m.name != site.name or m.node_id in here]
    expected_sites([*others, site])
    return in_site_order([*others, site])


def _require_counted_on(strategy: Federated, site: Site, federation: FederationSettings) -> None:
    """Raise FederationError for a site of its own data that is one more than the operator counted on."""
    complete = len(strategy.members.were_there) >= strategy.members.counted_on
    if (
        federation.newcomers == "known"
        and not site.partitions
        and complete
        and site.name not in strategy.members.were_there
    ):
        raise FederationError(
            f"site '{site.name}' was not counted on (federation.sites={strategy.members.counted_on}): "
            "federation.newcomers=any lets such a site join"
        )


class Clock:
    """Seconds by phase; waiting for replies is told apart from the work in between."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Add the time since the last lap to ``phase``."""
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._last
        self._last = now

    def waiting(self, items: Iterable[T]) -> Iterator[T]:
        """Yield ``items``, booking the time until each is there as ``devices``."""
        iterator = iter(items)
        while True:
            self.lap("aggregate")
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self.lap("devices")
            # While this waits at the yield its names hold what they name: a reply that was read would stay in memory.
            held = [item]
            del item
            yield held.pop()


def _tell(callbacks: Sequence[Callback], result: RoundResult) -> None:
    for callback in callbacks:
        callback(result)


# ---- evaluation ----------------------------------------------------------------------------------
# The server's own evaluation: on the validation share, which choices may look at, and on the test set.

log = logging.getLogger("flwr")


def server_evaluator(division: Division) -> Evaluator:
    """Return what evaluates weights after a round; it loads its data at once, so that a lack shows early.

    Raises
    ------
    DataError
        If the server is to evaluate and the data set is not there.
    """
    run = division.run
    if run.config.evaluation.on not in ("server", "both"):
        return lambda learned, beside: Judgement()
    test = samples(division.dataset.test, run.info).to(run.device)
    settings = run.config
    judging = division.validation[: 0 if settings.settings.trains_on_validation else None]
    held = samples(division.dataset.train, run.info, judging).to(run.device)

    @cache
    def model_of(architecture: str) -> Classifier:
        return run.with_model(architecture).build_model()

    def on(part: Samples, name: str, arrays: ArrayRecord) -> Evaluation:
        model = model_of(name if name in run.architectures else "")
        model.load_state_dict(arrays.to_torch_state_dict(keep_input=True))
        return evaluate(
            model, part, run.task, settings.evaluation.batch, settings.compute.precision
        )

    def judge(
        learned: Mapping[str, ArrayRecord], beside: Mapping[str, ArrayRecord] = MappingProxyType({})
    ) -> Judgement:
        on_test = {name: on(test, name, arrays) for name, arrays in learned.items()}
        on_held = [on(held, *model) for model in learned.items()] if len(held) else []
        others = {name: on(test, name, arrays) for name, arrays in beside.items()}
        return Judgement(
            mean_of([*on_test.values()]),
            mean_of(on_held) if on_held else None,
            {**on_test, **others} if len(on_test) + len(others) > 1 else {},
        )

    for sentence in division.gaps:
        log.warning("%s", sentence)
    model_of("")  # so that one that cannot be built shows early
    return judge


def mean_of(figures: Sequence[Evaluation]) -> Evaluation:
    """Return the plain mean over models that were judged on the same set."""
    if len(figures) == 1:
        return figures[0]
    each = zip(*(one.per_class for one in figures), strict=True)
    return Evaluation(
        loss=fmean(one.loss for one in figures),
        accuracy=fmean(one.accuracy for one in figures),
        per_class=tuple(fmean(column) for column in each),
        examples=figures[0].examples,
    )
