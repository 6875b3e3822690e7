"""The Strategy that every method extends: what it is to write, and how a round goes by it.

A method defines what a reply must satisfy (``validation_rules``), what it sends (``phase``, ``sends``, ``expects``, or
``instructions`` where sites get different things) and how it uses what comes back (``update``). Its other hooks, with
their defaults, are in `strategies.federated`. `strategies.round` is a round from its questions to its record. The
result IS a Flower Strategy: Nectar's loop drives it, and so does Flower's own ``start``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from common.code.imports import load
from common.draws.seeding import generator
from common.errors import ConfigError
from common.learning.run import Run
from common.methods import resolve
from common.sites import Site
from common.wire.form import Payload, Spec
from common.wire.weights import Weights
from strategies.averaging import Mean, RobustMean, ServerOptimizer
from strategies.exchange.instructions import Instruction, arrays_from, weights_from
from strategies.exchange.replies import Upload
from strategies.exchange.rules import GLOBAL
from strategies.federated import LEARNED, Federated, State

__all__ = ["GLOBAL", "LEARNED", "Instruction", "State", "Strategy", "strategy_class"]

_OPTIMIZER = "server-optimizer"


class Strategy(Federated):
    """Base of Nectar's methods; its parameters are `Federated`'s."""

    phase: ClassVar[str] = "train"
    """The phase of the sites' client that an instruction is for."""

    def __init__(self, run: Run, record_id: str = "run") -> None:
        super().__init__(run, record_id)
        self._optimizer = ServerOptimizer.of(run.config.settings, run.spec)

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a method without rules for its replies; TypeError naming the hook."""
        super().__init_subclass__(**options)
        # ABC would say so when the class is used. A class that leaves both unwritten is a base for others.
        hooks = cls.update, cls.validation_rules
        if [getattr(each, "__isabstractmethod__", False) for each in hooks] == [False, True]:
            raise TypeError(
                f"{cls.__name__} has no rules for its replies: write validation_rules(self), which returns a "
                "strategies.exchange.rules.Rule for each part of what its sites send (docs/add-a-method.md)"
            )

    # ---- what a method writes, besides its rules -------------------------------------------------------

    def sends(self, weights: Weights) -> Payload:
        """Return what every site gets in a round; by default its weights, w_r."""
        return weights

    def expects(self) -> Spec:
        """Return the form of a reply; by default that of the run's model."""
        return self.run.spec

    def instructions(
        self, server_round: int, weights: Weights, sites: Sequence[Site]
    ) -> Mapping[str, Instruction]:
        """Return an instruction for each of ``sites``, by the site's name; one that is missing is left out.

        By default all run ``phase``, get what ``sends`` returns and reply as ``expects`` says.
        """
        instruction = Instruction(self.phase, self.sends(weights), self.expects())
        return {site.name: instruction for site in sites}

    @abstractmethod
    def update(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Return the new weights.

        ``uploads`` yields the accepted ones in site order as they are read, and can be walked once. Walking to
        its end raises FederationError where fewer than ``federation.min_replies`` of those asked were accepted.
        """

    def choose(self, server_round: int) -> list[Site]:
        """Return the round's sites in site order: a ``participation`` share of all, at least one."""
        share = self.run.config.federation.participation
        if share == 1.0:
            return list(self.sites)
        size = max(1, round(share * len(self.sites)))
        rng = generator(self.run.config.seed, "participation", server_round)
        picked = torch.randperm(len(self.sites), generator=rng)[:size].tolist()
        return [self.sites[i] for i in sorted(picked)]

    def average(self, like: Weights, exclude: Collection[str] = ()) -> Mean | RobustMean:
        """Return the averaging of weights like ``like``: their mean, or the rule of ``federation.robust``.

        To that, those of names to ``exclude`` and the model's statistics are not parameters.
        """
        federation, spec = self.run.config.federation, self.run.spec
        if not federation.combines:
            return Mean(like)
        statistics = frozenset(spec.names).difference(spec.trained)
        return RobustMean(like, federation, statistics.union(exclude))

    # ---- a method inside this one ---------------------------------------------------------------------

    def strategy_of(self, method: str) -> Strategy:
        """Return the strategy of a method that this one's settings say they use, over the same members and rounds.

        Its ``instructions``, ``prepare``, ``initial_model``, ``resulting_model``, ``advance``, ``checkpoint`` and
        ``restore`` are this strategy's to call; it sends nothing itself.

        Raises
        ------
        ConfigError
            If it is not one of Nectar's own strategies, which define what is sent and how replies are used.
        """
        inner = strategy_class(method)(self.run.of(method), self.record_id)
        inner.members = self.members
        return inner

    def advance(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Return the new weights: those of ``update``, by the server's optimiser where the run has one."""
        updated = self.update(server_round, weights, uploads)
        if self._optimizer is None:
            return updated
        return self._optimizer.step(server_round, weights, updated)

    def checkpoint(self) -> State:
        """Return ``state_dict``, what the server's optimiser keeps, and what the sites were charged."""
        moments = {} if self._optimizer is None else {_OPTIMIZER: self._optimizer.moments}
        return {**super().checkpoint(), **moments}

    def restore(self, state: State) -> None:
        """Restore what ``checkpoint`` returned."""
        if self._optimizer is not None:
            self._optimizer.moments = state[_OPTIMIZER]
        super().restore({name: kept for name, kept in state.items() if name != _OPTIMIZER})

    # ---- Flower's hooks -------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Choose the round's sites and compose a message for each, in site order."""
        self.ensure_roll_call(grid)
        weights = weights_from(self.run, arrays)
        open_round, sites = self.begin(server_round, weights), self.choose(server_round)
        plan = self.instructions(server_round, weights, sites)
        return open_round.compose(plan, sites, config, arrays)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Validate the replies and let the method make new weights of the accepted ones."""
        open_round, members = self.round, self.members
        weights = self.advance(server_round, open_round.weights, open_round.accepted(replies))
        self.members.round = None
        open_round.require_finite(weights)
        members.last_accepted_round |= dict.fromkeys(self.outcome.accepted, server_round)
        members.accepted_this_process |= self.outcome.accepted.keys()
        return arrays_from(weights), _mean_figures([*self.outcome.accepted.values()])


def _mean_figures(rows: Sequence[Mapping[str, float]]) -> MetricRecord | None:
    """Return the plain mean of every figure over the sites that sent it, at least half of them; None of no site.

    So a minority neither takes a figure from a round nor puts one in.
    """
    if not rows:
        return None
    sent = [(k, [row[k] for row in rows if k in row]) for k in dict.fromkeys(chain(*rows))]
    return MetricRecord({k: sum(own) / len(own) for k, own in sent if 2 * len(own) >= len(rows)})


def strategy_class(name: str) -> type[Strategy]:
    """Return a method's strategy, Nectar's or a user's own; ConfigError if the method names something else."""
    method = resolve(name)
    cls = load(method.strategy)
    if not (isinstance(cls, type) and issubclass(cls, Strategy)):
        raise ConfigError(
            f"{method.strategy} cannot be the strategy of {method.name}: it must inherit strategies.base.Strategy"
        )
    return cls
