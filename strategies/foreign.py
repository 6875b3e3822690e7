"""Any Flower strategy that moves weights, named by its import path, with devices that train as FedAvg's do.

The strategy runs unchanged. This adapter stands around its hooks: what it sends is put into Nectar's wire format,
what comes back is validated before the strategy sees it, and a reply that is missing or bad is handed to it as an
error message rather than dropped (a differentially private wrapper must not average five with noise for six).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from logging import getLogger
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, exception
from flwr.serverapp.strategy import Strategy as FlowerStrategy

from common.code.imports import load
from common.config.strategy import constructor_parameters
from common.draws.seeding import derive
from common.errors import ConfigError, FederationError, PayloadError, one_line
from common.learning.run import Run
from common.sites import Site
from common.specs.foreign import CLIPPING_NORM, NORM_BIT, PROXIMAL_MU, Demands
from common.wire.weights import Weights
from strategies.attributes import changed_attributes, restore_attributes, snapshot
from strategies.base import Instruction, State, Strategy
from strategies.bounds import Bound, model, require_believable
from strategies.exchange.replies import Outcome, Upload, matched, read_upload, require_records

logger = getLogger("flwr")

REJECTED = 102

#: looks at the nodes that no strategy needs in a round, unless it waits for more of them
_MAX_LOOKS = 5

#: what Flower's strategies put into every message themselves, and what of theirs the devices follow
_KNOWN_KEYS = {"server-round", PROXIMAL_MU, CLIPPING_NORM}

#: the figure that every reply carries, or in a private run none, so that no strategy meets a differing key
_LOSS = "train-loss"

#: what Flower's strategies raise with a sentence for whoever runs them
_FLOWERS_REASONS = (
    exception.AggregationError,
    exception.InconsistentMessageReplies,
    exception.PrivacyBudgetExhausted,
)

#: Flower's own name for what a clipped update comes with
_FLOWERS_BIT = "norm_bit"


class ForeignStrategy(Strategy):
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
        if self._optimizer is not None:
            raise ConfigError(
                f"fedavg.server_* is the server's step of Nectar's own methods, and {run.config.method} takes its own: "
                "leave fedavg.server_* out, and set strategy.* instead."
            )
        if run.config.model.statistics == "local":
            raise ConfigError(
                f"model.statistics=local needs sites that remember, which those of {run.config.method} are not asked "
                "to: choose fedavg with fedavg.server_optimizer, or leave it out"
            )
        self.inner = inner if inner is not None else _construct(run)
        self._fresh = snapshot(self.inner)
        if any(buffer.is_floating_point() for buffer in run.build_model().buffers()):
            logger.warning(
                "%s treats the running means and variances of batch norm as it treats weights: a momentum or an "
                "adaptive step at the server can make a variance negative; choose another norm, or another model",
                run.config.method,
            )
        self._asked: list[tuple[Message, Site]] = []
        self._demands: dict[str, Demands] = {}
        self._arrays: ArrayRecord | None = None

    def instructions(
        self, server_round: int, weights: Weights, sites: Sequence[Site]
    ) -> Mapping[str, Instruction]:
        """Not used: the inner strategy composes its own messages."""
        raise TypeError("a Flower strategy composes its own messages")

    def update(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Not used: the inner strategy aggregates messages."""
        raise TypeError("a Flower strategy aggregates messages")

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Let the inner strategy choose nodes and weights; send them to the devices."""
        self.ensure_roll_call(grid)
        self.members.outcome = Outcome()
        self._arrays = arrays
        here = SiteGrid(grid, self.sites, derive(self.run.config.seed, "sampling", server_round))
        sites = {site.node_id: site for site in self.sites}
        with self._refusals():
            messages = list(self.inner.configure_train(server_round, arrays, ConfigRecord(), here))
        asked = [(message, sites[message.metadata.dst_node_id]) for message in messages]
        self._asked = sorted(asked, key=lambda pair: self.sites.index(pair[1]))
        self._sent = [self._translate(server_round, m, site) for m, site in self._asked]
        return [message for message, _, _ in self._sent]

    def _translate(
        self, server_round: int, message: Message, site: Site
    ) -> tuple[Message, Site, Instruction]:
        arrays, config = _contents(message)
        surplus = set(config) - _KNOWN_KEYS
        if surplus:
            raise FederationError(
                f"{self.run.config.method} asks its devices to follow {', '.join(sorted(surplus))}, which they do "
                f"not: choose a strategy that needs plain local training, {PROXIMAL_MU} or {CLIPPING_NORM}"
            )
        self._demands[site.name] = demands = Demands.of(config)
        instruction = Instruction("train", self.weights_from(arrays), self.run.spec)
        fields = ConfigRecord(
            {
                **self._address(server_round),
                **self.head_of(site),
                "phase": instruction.phase,
                **demands.fields(),
            }
        )
        body = self.serialiser().record(instruction.payload)
        content = RecordDict({"arrays": body, "config": fields})
        sent = Message(
            content, site.node_id, message.metadata.message_type, group_id=str(server_round)
        )
        return sent, site, instruction

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Hand the inner strategy one reply for each of its messages, in site order."""
        originals = {site.name: message for message, site in self._asked}
        read = [
            (site, self._judge(server_round, reply, site, instruction))
            for reply, site, instruction in matched(replies, self._sent)
        ]
        start = self.weights_from(self._arrays) if self._arrays is not None else None
        uploads = [upload for _, upload in read if upload is not None]
        if start is not None:
            uploads = list(self.plausible(server_round, start, uploads, self.judge(start)))
        passed = {upload.site.name: upload for upload in uploads}
        translated = [
            self._translated(site, passed.get(site.name), originals[site.name]) for site, _ in read
        ]
        self.require_quorum(server_round)
        with self._refusals():
            arrays, metrics = self.inner.aggregate_train(server_round, translated)
        if arrays is None:
            logger.warning("round %d: the strategy made no update", server_round)
            return None, metrics
        weights = self.weights_from(arrays)
        self._require_finite(server_round, weights)
        return self.arrays_from(weights), metrics

    def _judge(
        self,
        server_round: int,
        reply: Message,
        site: Site,
        instruction: Instruction,
    ) -> Upload | None:
        try:
            require_records(reply, self.records)
            self.take_charges(reply, site)
            upload = read_upload(reply, site, instruction.expects)
            assert isinstance(instruction.payload, Weights)
            require_believable(self.bounds(), self.run.config.wire, instruction.payload, upload)
            self._require_figures(site, upload.metrics)
        except PayloadError as error:
            self.outcome.rejected[site.name] = str(error)
            logger.warning("round %d: rejected %s: %s", server_round, site.name, error)
            return None
        self.outcome.accept(upload)
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

    def bounds(self) -> Mapping[str, Bound]:
        """Believe a model beside the others'."""
        return {"": model("the strategy's own aggregation", "whatever the strategy keeps")}

    def leads_to(self, weights: Weights, upload: Upload) -> Weights:
        """Return the site's model."""
        assert isinstance(upload.payload, Weights)
        return upload.payload

    def _translated(self, site: Site, upload: Upload | None, original: Message) -> Message:
        if upload is None:
            reason = self.outcome.rejected[site.name]
            return Message(Error(code=REJECTED, reason=reason), reply_to=original)
        assert isinstance(upload.payload, Weights)
        content = RecordDict(
            {
                "arrays": self.arrays_from(upload.payload),
                "metrics": self._figures(upload),
                "config": ConfigRecord({"site": site.name}),
            }
        )
        return Message(content, reply_to=original)

    def _figures(self, upload: Upload) -> MetricRecord:
        """Return a reply's figures as the strategy expects them, the count by which it weights among them."""
        metrics = upload.metrics
        # Read by name: to import FedAvg's settings here would make them part of every method's code.
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
            f"method={run.config.method} weights sites by their training loss, which no site tells in a private run: "
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


class SiteGrid(Grid):
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

    def set_run(self, run: Any) -> None:
        """Pass on."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run."""
        return self._grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Pass on."""
        return self._grid.create_message(*args, **kwargs)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Pass on."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pass on."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Pass on."""
        return self._grid.send_and_receive(messages, timeout=timeout)
