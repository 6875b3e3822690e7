"""The rounds: configure, exchange, aggregate, evaluate, call the observers; nothing specific to a method.

Only Flower's own hooks are called, so any Flower Strategy can be driven.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from logging import getLogger
from statistics import fmean
from types import MappingProxyType
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from common.division import Division
from common.learning.compute import return_freed_memory
from common.learning.measures import measure, require_classes
from common.learning.task import Evaluation
from common.models import Classifier
from common.samples.inputs import Samples, samples
from common.settings.sections import MEASURES
from server_app.data_of_run import require_data_of
from strategies.federated import Federated
from strategies.round import Callback, Evaluator, FiguresCallback, Judgement, RoundResult, Rounds

logger = getLogger("flwr")


def federate(
    strategy: Federated,
    grid: Grid,
    arrays: ArrayRecord,
    *,
    first_round: int,
    last_round: int,
    evaluator: Evaluator,
    callbacks: Sequence[Callback] = (),
    figures_callbacks: Sequence[FiguresCallback] = (),
    unjudged: bool = False,
    enough: Callable[[], bool] = lambda: False,
) -> ArrayRecord:
    """Run rounds ``first_round`` to ``last_round`` from ``arrays`` and return the last weights.

    The strategy has made its roll call (``ensure_roll_call``). Round 0, the evaluation of the start, is part of
    a run that begins at round 1 and of no resumed one. A round is one exchange: its weights' evaluation at the sites
    goes along with the next round's instructions (`strategies.exchange.evaluation`), the last one's has an exchange of
    its own.
    Every ``evaluation.every``-th round is evaluated, and ``last_round``.
    The run ends sooner where ``enough`` says so after a round.
    With ``unjudged`` the sites' figures of the round before ``first_round`` are still to come.

    Raises
    ------
    FederationError
        If a round ends with fewer valid replies than ``federation.min_replies``, or the strategy stops.
    """
    if first_round == 1:
        judged = evaluator(strategy.global_models(arrays), strategy.extra_models(arrays))
        start = RoundResult(0, arrays, judged.test, judged.validation)
        for callback in callbacks:
            callback(start)
    rounds = Rounds(strategy, grid, evaluator, callbacks, figures_callbacks)
    members, config = strategy.members, strategy.run.config
    require = partial(require_data_of, data=members.data, dataset=config.dataset)
    if unjudged:
        strategy.ask_for_evaluation(first_round - 1, arrays)
    for server_round in range(first_round, last_round + 1):
        if strategy.asks_sites:
            members.update(grid, strategy.question, config.federation, require)
        due = server_round % config.evaluation.every == 0 or server_round == last_round
        arrays = rounds.run(server_round, arrays, evaluated=due)
        return_freed_memory()
        strategy.require_going_on()
        if enough():
            break
    rounds.close()
    return arrays


# ---- evaluation ----------------------------------------------------------------------------------
# The server's own evaluation: on the validation share, which choices may look at, and on the test set.


def server_evaluator(division: Division) -> Evaluator:
    """Return what evaluates weights after a round; it loads its data at once, so that a lack shows early.

    Raises
    ------
    DataError
        If the server is to evaluate and the data set is not there.
    """
    run = division.run
    require_classes(run)
    if run.config.evaluation.on not in ("server", "both"):
        return lambda learned, beside: Judgement()
    test = samples(division.dataset.test, run.info).to(run.device)
    judging = division.validation[: 0 if run.config.settings.trains_on_validation else None]
    held = samples(division.dataset.train, run.info, judging).to(run.device)

    @cache
    def model_of(architecture: str) -> Classifier:
        return run.with_model(architecture).build_model()

    def on(part: Samples, name: str, arrays: ArrayRecord) -> Evaluation:
        model = model_of(name if name in run.architectures else "")
        model.load_state_dict(arrays.to_torch_state_dict(keep_input=True))
        return measure(run, model, part)

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
        logger.warning("%s", sentence)
    model_of("")  # so that one that cannot be built shows early
    return judge


def mean_of(figures: Sequence[Evaluation]) -> Evaluation:
    """Return the plain mean over models that were judged on the same set."""
    if len(figures) == 1:
        return figures[0]
    each = zip(*(one.per_class for one in figures), strict=True)
    means: dict[str, Any] = {
        name: fmean(getattr(one, name) for one in figures) for name in ("loss", *MEASURES)
    }
    per_class = tuple(fmean(column) for column in each)
    return replace(figures[0], per_class=per_class, confusion=(), **means)
