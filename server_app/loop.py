"""The rounds: configure, exchange, aggregate, evaluate, tell the callbacks; nothing a method would know.

Only Flower's own hooks are called, so whatever is a Flower Strategy can be driven from here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from logging import getLogger
from statistics import fmean
from types import MappingProxyType
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from common.division import Division
from common.errors import FederationError
from common.learning.compute import return_freed_memory
from common.learning.measures import measure, require_classes
from common.learning.task import Evaluation
from common.models import Classifier
from common.samples.inputs import Samples, samples
from common.settings.sections import MEASURES, FederationSettings
from common.sites import Site, in_site_order
from server_app.data_of_run import require_data_of
from strategies.exchange.inbox import nodes_online
from strategies.exchange.roll_call import NoAnswer, ask_nodes, describe_unresponsive, expected_sites
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
    federation: FederationSettings,
    evaluator: Evaluator,
    every: int = 1,
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
    Every ``every``-th round is evaluated, and ``last_round``.
    The run ends sooner where ``enough`` says so after a round.
    With ``unjudged`` the sites' figures of the round before ``first_round`` are still to come.

    Raises
    ------
    FederationError
        If a round ends with fewer valid replies than ``federation.min_replies``, or the strategy goes on no further.
    """
    if first_round == 1:
        judged = evaluator(strategy.global_models(arrays), strategy.extra_models(arrays))
        start = RoundResult(0, arrays, judged.test, judged.validation)
        for callback in callbacks:
            callback(start)
    rounds = Rounds(strategy, grid, federation, evaluator, callbacks, figures_callbacks)
    if unjudged:
        rounds.ask_for_evaluation(first_round - 1, arrays)
    for server_round in range(first_round, last_round + 1):
        if strategy.asks_sites:
            update_membership(strategy, grid, federation)
        due = server_round % every == 0 or server_round == last_round
        arrays = rounds.run(server_round, arrays, evaluated=due)
        return_freed_memory()
        strategy.require_going_on()
        if enough():
            break
    rounds.close()
    return arrays


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
    """Return a clause about nodes that are online and do not answer; nothing if there are none."""
    silent = here - members.keys() - strategy.members.refused
    names = {site.node_id: site.name for site in strategy.sites}
    return f" ({describe_unresponsive(grid, silent, names)})" if silent else ""


def _join(
    strategy: Federated,
    grid: Grid,
    node_id: int,
    members: Iterable[Site],
    federation: FederationSettings,
) -> list[Site]:
    """Return the members with ``node_id`` among them; a site that returns under a new node id replaces itself."""
    here = nodes_online(grid)
    if here is None:  # whoever has its name may be there, or not
        raise NoAnswer("the SuperLink is too busy to say which nodes are there; it is asked again")
    deadline = min(60.0, federation.round_deadline)
    (site,) = ask_nodes(grid, [node_id], strategy.question, deadline=deadline)
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
