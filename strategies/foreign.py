"""Any Flower strategy that moves weights, named by its import path, with devices that train as FedAvg's do.

The strategy runs unchanged. This adapter wraps its hooks: what it sends is put into Nectar's wire format,
what comes back is validated before the strategy sees it, and a reply that is missing or bad is handed to it as an
error message rather than dropped (a differentially private wrapper must not average five with noise for six).
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from logging import getLogger
from typing import Any, cast

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, exception
from flwr.serverapp.strategy import Strategy as FlowerStrategy

from common.code.imports import constructor_parameters, load
from common.draws.seeding import derive
from common.errors import ConfigError, FederationError, PayloadError, one_line
from common.learning.run import Run
from common.sites import Site
from common.specs.updates import CLIPPING_NORM, NORM_BIT, PROXIMAL_MU, Demands
from common.wire.weights import Weights
from strategies.averaging import ServerOptimizer
from strategies.exchange.instructions import Instruction, Serialiser, arrays_from, weights_from
from strategies.exchange.open_round import OpenRound
from strategies.exchange.replies import Upload
from strategies.exchange.rules import Rule, model_rule
from strategies.federated import Federated, State

logger = getLogger("flwr")

REJECTED = 102

#: what Flower's strategies put into every message themselves, and what of theirs the devices follow
_KNOWN_KEYS = {"server-round", PROXIMAL_MU, CLIPPING_NORM}

#: the figure that every reply carries, or in a private run none, so that no strategy meets a differing key
_LOSS = "train-loss"

#: what Flower's strategies raise with a sentence for the user
_FLOWERS_REASONS = (
    exception.AggregationError,
    exception.InconsistentMessageReplies,
    exception.PrivacyBudgetExhausted,
)

#: Flower's own name for what a clipped update comes with
_FLOWERS_BIT = "norm_bit"


class ForeignStrategy(Federated):
    """Nectar's hooks around a Flower strategy's own.

    Parameters
    ----------
    run : Run
        ``run.config.method`` is the import path, ``run.config.strategy`` the constructor's arguments.
    inner : Strategy, optional
        An instance to use instead of constructing one.
    """

    records = None

    def __init__(
        self, run: Run, record_id: str = "run", inner: FlowerStrategy | None = None
    ) -> None:
        super().__init__(run, record_id)
        _require_plain(run)
        self.inner = inner if inner is not None else _construct(run)
        self._fresh = snapshot(self.inner)
        self._originals: dict[str, Message] = {}
        self._demands: dict[str, Demands] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Let the inner strategy choose nodes and weights; send them to the devices."""
        self.ensure_roll_call(grid)
        open_round = self.begin(server_round, weights_from(self.run, arrays))
        seed = derive(self.run.config.seed, "sampling", server_round)
        nodes = cast("Grid", SiteGrid(grid, self.sites, seed))
        with self._refusals():
            messages = list(self.inner.configure_train(server_round, arrays, ConfigRecord(), nodes))
        sites = {site.node_id: site for site in self.sites}
        asked = [(sites[message.metadata.dst_node_id], message) for message in messages]
        self._originals = {site.name: message for site, message in asked}
        for site, message in sorted(asked, key=lambda pair: self.sites.index(pair[0])):
            self._ask(open_round, site, message)
        return open_round.messages

    def _ask(self, open_round: OpenRound, site: Site, message: Message) -> None:
        arrays, config = _contents(message)
        surplus = set(config) - _KNOWN_KEYS
        if surplus:
            raise FederationError(
                f"{self.run.config.method} asks its devices to follow {', '.join(sorted(surplus))}, which they do "
                f"not: choose a strategy that needs plain local training, {PROXIMAL_MU} or {CLIPPING_NORM}"
            )
        self._demands[site.name] = demands = Demands.of(config)
        instruction = Instruction("train", weights_from(self.run, arrays), self.run.spec)
        # Each message may bring weights of its own, so that none are shared with another's.
        alone = Serialiser()
        open_round.ask(site, instruction, alone, demands.fields(), message.metadata.message_type)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Hand the inner strategy one reply for each of its messages, in site order."""
        open_round = self.round
        passed = {upload.site.name: upload for upload in open_round.accepted(replies)}
        answered = passed.keys() | self.outcome.rejected.keys()
        translated = [
            self._translated(site, passed.get(site.name))
            for _, site, _ in open_round.sent
            if site.name in answered
        ]
        self.members.round = None
        with self._refusals():
            arrays, metrics = self.inner.aggregate_train(server_round, translated)
        if arrays is None:
            logger.warning("round %d: the strategy made no update", server_round)
            return None, metrics
        weights = weights_from(self.run, arrays)
        open_round.require_finite(weights)
        return arrays_from(weights), metrics

    def prepare(self, server_round: int, weights: Weights, upload: Upload) -> Upload:
        """Refuse a reply that lacks a figure by which the strategy may go."""
        self._require_figures(upload.site, upload.metrics)
        return upload

    def _require_figures(self, site: Site, metrics: Mapping[str, float]) -> None:
        clipped = self._demands[site.name].norm is not None
        needed = [*[_LOSS] * (not self.run.config.private), *[NORM_BIT] * clipped]
        if missing := [key for key in needed if key not in metrics]:
            raise PayloadError(f"the figure '{missing[0]}' is missing from the reply")
        if clipped and metrics[NORM_BIT] not in (0, 1):
            raise PayloadError(
                f"the figure '{NORM_BIT}' is {metrics[NORM_BIT]:g} where 0 or 1 was expected"
            )

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Raise what the strategy itself gives as its reason to stop as FederationError."""
        try:
            yield
        except _FLOWERS_REASONS as error:
            raise FederationError(f"{self.run.config.method}: {one_line(str(error))}") from error

    def validation_rules(self) -> Mapping[str, Rule]:
        """Accept a model whose update is not far longer than the others'."""
        return {"": model_rule("the strategy's own aggregation", "what the strategy keeps")}

    def resulting_model(self, weights: Weights, upload: Upload) -> Weights:
        """Return the site's model."""
        return upload.payload_as(Weights)

    def _translated(self, site: Site, upload: Upload | None) -> Message:
        original = self._originals[site.name]
        if upload is None:
            reason = self.outcome.rejected[site.name]
            return Message(Error(code=REJECTED, reason=reason), reply_to=original)
        content = RecordDict(
            {
                "arrays": arrays_from(upload.payload_as(Weights)),
                "metrics": self._figures(upload),
                "config": ConfigRecord({"site": site.name}),
            }
        )
        return Message(content, reply_to=original)

    def _figures(self, upload: Upload) -> MetricRecord:
        """Return a reply's figures as the strategy expects them, the count by which it weights among them."""
        metrics = upload.metrics
        # Read by name: importing FedAvg's settings would make them part of every method's code.
        weighting = self.run.config.settings.model_dump()["weighting"]
        clipped = self._demands[upload.site.name].norm is not None
        bit = {_FLOWERS_BIT: int(metrics[NORM_BIT])} if clipped else {}
        count = upload.examples if weighting == "counts" else 1
        loss = {_LOSS: metrics[_LOSS]} if _LOSS in metrics else {}
        return MetricRecord({**loss, **bit, "num-examples": count})

    def state_dict(self) -> State:
        """Return every attribute of the inner strategy that changed since it was constructed."""
        return changed_attributes(self.inner, self._fresh)

    def load_state_dict(self, state: State) -> None:
        """Put those attributes back."""
        restore_attributes(self.inner, state)

    def summary(self) -> None:
        """Log the inner strategy's own summary."""
        logger.info("%s:", self.run.config.method)
        self.inner.summary()


def _require_plain(run: Run) -> None:
    """Refuse settings that only Nectar's own methods follow, and warn about steps on running statistics."""
    if ServerOptimizer.of(run.config.settings, run.spec) is not None:
        raise ConfigError(
            f"fedavg.server_* sets the server's step of Nectar's own methods; {run.config.method} has another: "
            "leave fedavg.server_* out, and set strategy.* instead."
        )
    if run.config.model.stays_in_part:
        raise ConfigError(
            f"{run.config.model.what_stays} needs sites that keep state, and those of {run.config.method} do not: "
            "choose fedavg with fedavg.server_optimizer, or leave it out"
        )
    if any(buffer.is_floating_point() for buffer in run.build_model().buffers()):
        logger.warning(
            "%s treats the running means and variances of batch norm as it treats weights: a momentum or an "
            "adaptive step at the server can make a variance negative; choose another norm, or another model",
            run.config.method,
        )


def _contents(message: Message) -> tuple[ArrayRecord, ConfigRecord]:
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise FederationError(
            f"the strategy sends {len(records)} array records a message where one, the weights, was expected"
        )
    configs = list(message.content.config_records.values())
    return records[0], configs[0] if configs else ConfigRecord()


def _construct(run: Run) -> FlowerStrategy:
    """Construct the strategy with the user's arguments and, where they say nothing, the run's own.

    ``min_*`` = 1: waiting and the quorum are Nectar's, and a strategy that waits by itself waits for ever.
    """
    cls = load(run.config.method)
    known = constructor_parameters(cls)
    if "train_loss_key" in known and run.config.private:
        raise ConfigError(
            f"method={run.config.method} weights sites by their training loss, which no site reports in a private run: "
            "choose another strategy, or set privacy.noise_multiplier=0."
        )
    defaults: dict[str, Any] = {
        "fraction_train": run.config.federation.participation,
        "min_train_nodes": 1,
        "min_evaluate_nodes": 1,
        "min_available_nodes": 1,
        "train_loss_key": _LOSS,
    }
    arguments = {k: v for k, v in defaults.items() if k in known} | dict(run.config.strategy)
    strategy = cls(**arguments)
    if not isinstance(strategy, FlowerStrategy):
        raise FederationError(f"{run.config.method} is not a flwr.serverapp.strategy.Strategy")
    return strategy


# ---- attributes ----------------------------------------------------------------------------------
# What a Flower strategy has learned so far, read off its attributes, since Flower has no state_dict for it.


def snapshot(strategy: FlowerStrategy) -> dict[str, Any]:
    """Return a deep copy of the attributes of a strategy, and of the strategies it wraps, that can be copied."""
    state: dict[str, Any] = {}
    for name, value in vars(strategy).items():
        if isinstance(value, FlowerStrategy):
            state[name] = snapshot(value)
        elif not callable(value):
            state[name] = copy.deepcopy(value)
    return state


def changed_attributes(strategy: FlowerStrategy, fresh: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that differ from ``fresh``, a ``snapshot``; wrapped strategies as nested mappings.

    A strategy with ``state_dict`` provides it instead.
    """
    if hasattr(strategy, "state_dict"):
        return {"state_dict": strategy.state_dict()}
    changed: dict[str, Any] = {}
    for name, value in vars(strategy).items():
        if isinstance(value, FlowerStrategy):
            inner = changed_attributes(value, fresh.get(name, {}))
            if inner:
                changed[name] = inner
        elif not callable(value) and (name not in fresh or not _equal(value, fresh[name])):
            changed[name] = value
    return changed


def restore_attributes(strategy: FlowerStrategy, state: Mapping[str, Any]) -> None:
    """Put back what ``changed_attributes`` returned."""
    if "state_dict" in state and hasattr(strategy, "load_state_dict"):
        strategy.load_state_dict(state["state_dict"])
        return
    for name, value in state.items():
        held = getattr(strategy, name, None)
        if isinstance(held, FlowerStrategy):
            restore_attributes(held, value)
        else:
            setattr(strategy, name, value)


def _equal(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray | torch.Tensor):
        return one.shape == other.shape and bool((one == other).all())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, Mapping) and not isinstance(one, ArrayRecord):
        return one.keys() == other.keys() and all(_equal(one[k], other[k]) for k in one)
    if isinstance(one, ArrayRecord):
        return list(one) == list(other) and all(one[k].data == other[k].data for k in one)
    return bool(one == other)


# ---- site grid -----------------------------------------------------------------------------------
# The grid as a Flower strategy sees it that draws its nodes by itself.

#: looks at the nodes that no strategy needs in a round, unless it waits for more of them
_MAX_LOOKS = 5


class SiteGrid:
    """The grid as a foreign strategy sees it: node ids in site order, and the same draw in every engine.

    Flower's ``sample_nodes`` draws from the global ``random`` right after ``get_node_ids``; reseeding there, and
    not outside, keeps Flower's own threads from drawing in between.
    """

    def __init__(self, grid: Grid, sites: Sequence[Site], seed: int) -> None:
        self._grid = grid
        self._ids = [site.node_id for site in sites]
        self._seed = seed
        self._looks = 0

    def get_node_ids(self) -> list[int]:
        """Return the members' node ids in site order.

        Raises
        ------
        FederationError
            If the strategy looks again and again: it waits for nodes, and within a round there come no others.
        """
        self._looks += 1
        if self._looks > _MAX_LOOKS:
            raise FederationError(
                f"the strategy waits for more nodes than the {len(self._ids)} there are: lower its min_* arguments"
            )
        random.seed(self._seed)
        return list(self._ids)

    def __getattr__(self, name: str) -> Any:
        """Pass everything else on."""
        return getattr(self._grid, name)
