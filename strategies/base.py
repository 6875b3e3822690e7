"""The Strategy that every method extends: Flower's own hooks, written once around two typed ones.

A method says what it sends (``instructions``) and what it makes of what comes back (``update``). Everything a
federation needs around that, who takes part, what a reply must look like, what happens to a bad one, is here.
The result IS a Flower Strategy: Nectar's loop drives it, and so does Flower's own ``start``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from logging import getLogger
from typing import Any, ClassVar

import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy as FlowerStrategy

from common.draws.seeding import generator
from common.errors import ConfigError, DivergedError, FederationError, PayloadError
from common.learning.run import Run
from common.methods import load, resolve
from common.privacy.told import HEAD, RECORD, written
from common.sites import Site
from common.specs.names import TAKEN
from common.wire import npy
from common.wire.bundle import Bundle
from common.wire.codec import Payload, Spec, is_finite
from common.wire.display_contrast import Contrast
from common.wire.flower_arrays import filled
from common.wire.lent import Lent, view_of
from common.wire.synthetic_images import SyntheticImages
from common.wire.weights import Weights
from strategies.bounds import Bound, held_beside, require_believable, unbounded
from strategies.exchange.gathering import wait_for_sites
from strategies.exchange.judging import (
    STATISTICS,
    TOGETHER,
    Judge,
    Led,
    Shortening,
    Trials,
    group_sizes,
)
from strategies.exchange.memory import require_memory, tell_memory
from strategies.exchange.replies import (
    EVALUATION_RECORDS,
    Outcome,
    SiteEvaluation,
    Upload,
    matched,
    read_evaluation,
    read_upload,
    require_records,
)
from strategies.exchange.roll_call import Question
from strategies.exchange.serialising import Serialiser
from strategies.exchange.spending import told_with
from strategies.members import Members
from strategies.plausible import absurd_losses
from strategies.server_optimizer import ServerOptimizer

logger = getLogger("flwr")

_OPTIMIZER, _SPENDING = "server-optimizer", "spending"

#: the part of a bundle that is a model
_WEIGHTS = "weights"

#: the name of the one model that most methods learn, and where a strategy keeps several
GLOBAL, LEARNED = "", "learned"

#: what a strategy keeps between rounds: tensors, arrays, numbers, texts, and lists and mappings of them
State = Mapping[str, Any]


@dataclass(frozen=True)
class Instruction:
    """What one site is asked: a phase of its client, the payload it gets, and what it must send back."""

    phase: str
    payload: Payload
    expects: Spec


class Strategy(FlowerStrategy):
    """Base of Nectar's methods.

    Parameters
    ----------
    run : Run
        The run's configuration, model and data shape.
    record_id : str
        Names the run to its devices, which keep their state under it.
    """

    #: whether the roll call asks the sites for their class counts
    needs_class_counts = False
    #: the records that a reply may hold; None for any
    records: ClassVar[Collection[str] | None] = frozenset({"arrays", "metrics", "about", RECORD})
    #: whether an update that is longer than the others' is shortened (``federation.robust``)
    clips: ClassVar[bool] = True
    #: how ``pictures`` are to be looked at
    contrast: ClassVar[Contrast] = "pixels"

    def __init__(self, run: Run, record_id: str = "run") -> None:
        self.run = run
        self.record_id = record_id
        self.members = Members(run.config.federation.sites)
        self._trials = Trials(run)
        self._optimizer = ServerOptimizer.of(run.config.settings, run.spec)
        self._sent: list[tuple[Message, Site, Instruction]] = []
        self._weights: Weights | None = None
        self._judged = self.outcome
        self._judges: list[Site] = []

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a method that can run and does not say what of a reply is believed.

        Raises
        ------
        TypeError
            Naming the hook.
        """
        super().__init_subclass__(**options)
        unwritten = {
            hook
            for hook in ("instructions", "update", "bounds")
            if getattr(getattr(cls, hook), "__isabstractmethod__", False)
        }
        if unwritten == {"bounds"}:
            raise TypeError(
                f"{cls.__name__} does not say what of a reply is believed: write bounds(self), which returns a "
                "strategies.bounds.Bound for each part of what its sites send (docs/add-a-method.md)"
            )

    # ---- what a method writes -------------------------------------------------------------------------

    @abstractmethod
    def bounds(self) -> Mapping[str, Bound]:
        """Return what is believed of each part that the sites send, by the part's name; empty for one that is alone.

        A name covers the parts of a bundle of that name. A run whose sites are to send another part is refused.
        """

    @abstractmethod
    def instructions(
        self, server_round: int, weights: Weights, sites: Sequence[Site]
    ) -> Mapping[str, Instruction]:
        """Return an instruction for each of ``sites``, by the site's name; one that is missing is left out."""

    @abstractmethod
    def update(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Return the new weights.

        ``uploads`` yields the accepted ones in site order as they are read, and can be walked once. Walking to
        its end raises FederationError where fewer than ``federation.min_replies`` of those asked were accepted.
        """

    def prepare(self, server_round: int, weights: Weights, upload: Upload) -> Upload:
        """Return a validated upload as ``update`` is to get it.

        Raises
        ------
        PayloadError
            If it cannot be used although it is well-formed; the reply is rejected for this reason.
        """
        return upload

    def leads_to(self, weights: Weights, upload: Upload) -> Weights | None:
        """Return the model that a prepared upload alone would lead to, by which it is judged; None where there is none.

        What is returned is held against the other uploads' lengths (``federation.max_update``) and must give finite
        outputs. A method whose sites send weights, or updates, says here what they come to.
        """
        return None

    def shortened(self, upload: Upload, shortening: Shortening) -> Upload:
        """Return a prepared upload that leads as far as ``shortening`` lets it.

        As it is written here it serves payloads that are weights, alone or as the part ``weights`` of a bundle.

        Raises
        ------
        PayloadError
            If it is none of these; then it is rejected.
        """
        payload = upload.payload
        name = _WEIGHTS if shortening.part in ("", STATISTICS) else shortening.part
        long = payload.parts.get(name) if isinstance(payload, Bundle) else payload
        if not isinstance(long, Weights):
            raise PayloadError(
                f"it is longer than federation.clip allows, and {type(self).__name__}.shortened does not shorten it"
            )
        shorter = shortening.of(long)
        if isinstance(payload, Bundle):
            return replace(upload, payload=Bundle({**payload.parts, name: shorter}))
        return replace(upload, payload=shorter)

    def start_of(self, weights: Weights, site: Site) -> tuple[Weights, str]:
        """Return what a site's model began the round with, and its architecture as `Run.with_model` takes it.

        Uploads are compared with those of the same architecture.
        """
        return weights, GLOBAL

    def state_dict(self) -> State:
        """Return what a checkpoint must hold besides the weights."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Take back what ``state_dict`` returned."""
        if state:
            raise FederationError(
                f"{type(self).__name__} keeps no state, the checkpoint holds some"
            )

    def pictures(self) -> Mapping[str, SyntheticImages]:
        """Return the images that the last round's sites sent, for the record to draw."""
        return {}

    def notes(self) -> Mapping[str, Any]:
        """Return what the last round's line in the record says beside its figures: plain data, as JSON has it."""
        return {}

    def checkpoint(self) -> State:
        """Return ``state_dict``, what the server's optimiser keeps, and what the sites were charged."""
        kept = {} if self._optimizer is None else {_OPTIMIZER: self._optimizer.moments}
        spent = self.members.spending.state()
        return {**self.state_dict(), **kept, **({_SPENDING: spent} if spent else {})}

    def restore(self, state: State) -> None:
        """Take back what ``checkpoint`` returned."""
        if self._optimizer is not None:
            self._optimizer.moments = state[_OPTIMIZER]
        if _SPENDING in state:
            self.members.spending.put_back(state[_SPENDING])
        own = {k: v for k, v in state.items() if k not in (_OPTIMIZER, _SPENDING)}
        self.load_state_dict(own)

    def learned(self, arrays: ArrayRecord) -> Mapping[str, ArrayRecord]:
        """Return what was learned by name: the models whose mean figures are a round's, the weights where not said.

        A method with several keeps them under ``LEARNED`` in its ``state_dict``, by name, as mappings of tensors. One
        named as one of the settings' ``models`` has its architecture, any other the run's own.
        """
        return {GLOBAL: arrays}

    def beside(self, arrays: ArrayRecord) -> Mapping[str, ArrayRecord]:
        """Return models by name that are judged beside what was learned, and count in no figure of the round's."""
        return {}

    # ---- Flower's hooks -------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Choose the round's sites and compose a message for each, in site order."""
        self.ensure_roll_call(grid)
        self.members.outcome = Outcome()
        self._weights = self.weights_from(arrays)
        chosen = self.choose(server_round)
        plan = self.instructions(server_round, self._weights, chosen)
        self._require_bounds(plan)
        serialiser, self._sent = self.serialiser(arrays), []
        common = {**config, **self._address(server_round)}
        for site in (site for site in chosen if site.name in plan):
            instruction = plan[site.name]
            body = serialiser.record(instruction.payload)
            taken = self.members.taken.get(site.name, 0)
            fields = {
                **common,
                **self.head_of(site),
                "phase": instruction.phase,
                TAKEN: taken,
            }
            records = {"arrays": body, "config": filled(ConfigRecord(), fields)}
            content = filled(RecordDict(), records)
            message = Message(content, site.node_id, MessageType.TRAIN, group_id=str(server_round))
            self._sent.append((message, site, instruction))
        return [message for message, _, _ in self._sent]

    def _require_bounds(self, plan: Mapping[str, Instruction]) -> None:
        """Refuse to ask for what would be taken as it comes."""
        known = self.bounds()
        for expected in {id(what.expects): what.expects for what in plan.values()}.values():
            part = unbounded(expected, known)
            if part is not None:
                raise ConfigError(
                    f"method={self.run.config.method} asks its sites for {f'a part {part!r}' if part else 'a payload'} "
                    f"of which {type(self).__name__}.bounds says nothing: add a strategies.bounds.Bound for it"
                )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Validate the replies and let the method make new weights of the accepted ones."""
        if self._weights is None:
            raise RuntimeError("aggregate_train needs a configure_train before it")
        accepted = self._accepted(server_round, self._weights, replies)
        weights = self.advance(server_round, self._weights, accepted)
        self._weights = None
        self._require_finite(server_round, weights)
        self.members.taken |= dict.fromkeys(self.outcome.accepted, server_round)
        self.members.taken_here |= self.outcome.accepted.keys()
        return self.arrays_from(weights), self._mean_metrics()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Compose the evaluation of the weights on the sites' held-out shares, if the run wants one."""
        if self.run.config.evaluation.on not in ("sites", "both"):
            return []
        self.ensure_roll_call(grid)
        self._judged, self._judges = self.outcome, list(self.sites)
        body = self.serialiser(arrays).record(self.weights_from(arrays))
        fields = {**config, **self._address(server_round)}
        return [
            Message(
                RecordDict(
                    {"arrays": body, "config": ConfigRecord({**fields, **self._memory(site)})}
                ),
                site.node_id,
                MessageType.EVALUATE,
                group_id=str(server_round),
            )
            for site in self.sites
            if site.name not in self.outcome.rejected
        ]

    def _memory(self, site: Site) -> dict[str, int]:
        """Return what a site is told of its memory where its own statistics are judged with the weights."""
        local = self.run.config.model.statistics == "local"
        return {TAKEN: self.members.taken.get(site.name, 0)} if local else {}

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the sites' figures, each site counting the images that it said it holds out.

        What is refused is noted of the round that ``configure_evaluate`` asked about, also when the next one has begun.
        """
        judges = {site.node_id: site for site in [*self.sites, *self._judges]}
        names = None if self.records is None else EVALUATION_RECORDS
        found: dict[str, SiteEvaluation] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            site = judges.get(node)
            try:
                if site is None:
                    raise PayloadError("it was not asked")
                require_records(reply, names)
                found[site.name] = read_evaluation(reply, site.held_out)
            except PayloadError as error:
                self._leave_unevaluated(
                    server_round, site.name if site else f"node {node}", str(error)
                )
        said = absurd_losses([f.loss for f in found.values()], len(self.run.info.classes))
        for name, reason in zip(list(found), said, strict=True):
            if reason is not None:
                del found[name]
                self._leave_unevaluated(server_round, name, reason)
        self._judged.evaluated.update(found)
        total = sum(figures.examples for figures in found.values())
        if not total:
            return None
        sums = {
            "accuracy": sum(f.examples * f.accuracy for f in found.values()),
            "loss": sum(f.examples * f.loss for f in found.values()),
        }
        return MetricRecord({key: value / total for key, value in sums.items()})

    def _leave_unevaluated(self, server_round: int, site: str, reason: str) -> None:
        self._judged.unevaluated[site] = reason
        logger.warning("round %d: rejected the evaluation of %s: %s", server_round, site, reason)

    def summary(self) -> None:
        """Log the method and its settings."""
        settings = ", ".join(f"{k}={v}" for k, v in self.run.config.settings.model_dump().items())
        logger.info("%s: %s", self.run.config.method, settings)

    @property
    def max_reply_bytes(self) -> list[int]:
        """The most bytes of arrays in the reply to each of ``configure_train``'s messages, in their order."""
        return [instruction.expects.max_bytes for _, _, instruction in self._sent]

    # ---- shared by the methods ------------------------------------------------------------------------

    @property
    def sites(self) -> list[Site]:
        """The sites that are there, in site order."""
        return self.members.sites

    @property
    def outcome(self) -> Outcome:
        """What became of the round's replies."""
        return self.members.outcome

    def strategy_of(self, method: str) -> Strategy:
        """Return the strategy of a method that this one's settings say they use, over the same members.

        Its ``instructions``, ``prepare``, ``start_of``, ``leads_to``, ``advance``, ``checkpoint`` and ``restore`` are
        this strategy's to call; it sends nothing itself.

        Raises
        ------
        ConfigError
            If it is no strategy of Nectar's kind, which alone says what it sends and what it makes of replies.
        """
        found = strategy_class(method)(self.run.of(method), self.record_id)
        found.members = self.members
        return found

    def advance(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Return the new weights: those of ``update``, by the server's optimiser where the run has one."""
        updated = self.update(server_round, weights, uploads)
        if self._optimizer is None:
            return updated
        return self._optimizer.step(server_round, weights, updated)

    def ensure_roll_call(self, grid: Grid) -> None:
        """Make the roll call unless the loop has made it (as under Flower's own ``start``)."""
        if not self.sites:
            federation = self.run.config.federation
            there = wait_for_sites(
                grid,
                federation.sites,
                self.question,
                deadline=federation.join_deadline,
                min_replies=federation.min_replies,
            )
            self.members.sites, self.members.left_out = there.sites, there.left_out
            self.members.refused = set(there.refused)

    @property
    def question(self) -> Question:
        """What the roll call asks."""
        config = self.run.config
        return Question(
            len(self.run.info.classes) if self.needs_class_counts else 0,
            config.evaluation.on in ("sites", "both"),
            config.federation.max_examples,
            self.members.spending.heads,
        )

    def choose(self, server_round: int) -> list[Site]:
        """Return the round's sites in site order: a ``participation`` share of all, at least one."""
        share = self.run.config.federation.participation
        if share == 1.0:
            return list(self.sites)
        size = max(1, round(share * len(self.sites)))
        rng = generator(self.run.config.seed, "participation", server_round)
        picked = torch.randperm(len(self.sites), generator=rng)[:size].tolist()
        return [self.sites[i] for i in sorted(picked)]

    def weights_from(self, arrays: ArrayRecord) -> Weights:
        """Return Flower's arrays as Weights in the model's dtypes: views of their bytes, copied when asked for."""
        spec, codec = self.run.spec, self.run.config.wire.weights
        views = {
            name: view_of(npy.read(arrays[name].data)).to(dtype)
            for name, dtype in zip(spec.names, spec.dtypes, strict=True)
        }
        return Weights(Lent(views), codec)

    def arrays_from(self, weights: Weights) -> ArrayRecord:
        """Return Weights as Flower's arrays, one a tensor under its own name."""
        return ArrayRecord(dict(weights.read_only))

    def serialiser(self, arrays: ArrayRecord | None = None) -> Serialiser:
        """Return what serialises a round's payloads; ``arrays`` is what the round begins with."""
        known = [] if arrays is None else list(arrays.values())
        return Serialiser(self.run.config.wire.compression, known)

    def head_of(self, site: Site) -> dict[str, str]:
        """Return what an instruction says of the site's ledger: the newest head of it that was seen."""
        head = self.members.spending.heads.get(site.name)
        return {} if head is None else {HEAD: written(head)}

    def take_charges(self, reply: Message, site: Site) -> None:
        """Note what a reply says of its site's privacy, whatever else becomes of it.

        Raises
        ------
        PayloadError
            If it cannot be read, or is of other noise than the run's settings have.
        """
        told, noises = told_with(reply), self.run.config.noises
        if told is not None and noises is not None:
            others = {event.noise_multiplier for event in told.events} - noises
            if others or not noises:
                raise PayloadError(
                    "it says that it was charged for noise that the run does not have"
                )
        if told is not None:
            self.members.spending.take(site.name, told)

    def _address(self, server_round: int) -> dict[str, str | int]:
        return {"server-round": server_round, "record": self.record_id}

    def _accepted(
        self, server_round: int, weights: Weights, replies: Iterable[Message]
    ) -> Iterator[Upload]:
        """Yield the uploads that pass, note those that do not, and insist on the quorum at the end."""
        wave = self.run.config.federation.wave or TOGETHER
        answers, judge = matched(replies, self._sent), self.judge(weights)
        bounds = self.bounds()
        sizes = group_sizes(wave, max(self.max_reply_bytes, default=0))
        while together := list(islice(answers, next(sizes))):
            ready: list[Upload] = []
            while together:
                reply, site, instruction = together.pop(0)
                try:
                    require_records(reply, self.records)
                    self.take_charges(reply, site)
                    upload = read_upload(reply, site, instruction.expects)
                    require_believable(bounds, self.run.config.wire, weights, upload)
                    ready.append(self.prepare(server_round, weights, upload))
                except PayloadError as error:
                    require_memory(self.members, site, str(error))
                    self.outcome.rejected[site.name] = str(error)
                    logger.warning("round %d: rejected %s: %s", server_round, site.name, error)
                    continue
                self.outcome.accept(upload)
                del reply, upload
                tell_memory(server_round, ready[-1], self.members)
            yield from self.plausible(server_round, weights, ready, judge)
        self.require_quorum(server_round)

    def judge(self, weights: Weights) -> Judge:
        """Return the judge of a round that begins with ``weights``."""
        federation = self.run.config.federation
        clip = federation.clip if federation.robust == "clip" and self.clips else 0.0
        return Judge(self._trials, weights, federation.max_update, clip)

    def plausible(
        self, server_round: int, weights: Weights, uploads: list[Upload], judge: Judge
    ) -> Iterator[Upload]:
        """Yield those of a group of uploads that lead somewhere, and reject the others by name; the list is emptied."""
        bounds = self.bounds()
        verdicts = judge.judge(
            [
                Led(self.leads_to(weights, upload), *self.start_of(weights, upload.site)),
                *held_beside(bounds, weights, upload),
            ]
            for upload in uploads
        )
        for verdict in verdicts:
            upload = uploads.pop(0)
            if verdict.reason is not None:
                self.reject(server_round, upload, verdict.reason)
                continue
            try:
                for shortening in verdict.shortenings:
                    upload = self.shortened(upload, shortening)
                    self.note_shortened(server_round, upload.site, shortening)
            except PayloadError as error:
                self.reject(server_round, upload, str(error))
                continue
            yield upload
            del upload

    def note_shortened(self, server_round: int, site: Site, shortening: Shortening) -> None:
        """Tell of a part of a site's upload that was longer than ``federation.clip`` allows."""
        self.outcome.shortened[site.name] = shortening.share
        logger.warning(
            "round %d: shortened %s of %s to %.2g of its length, the usual one of the round: it exceeded "
            "federation.clip=%g times that",
            server_round,
            f"the part '{shortening.part}'" if shortening.part else "the update",
            site.name,
            shortening.share,
            self.run.config.federation.clip,
        )

    def reject(self, server_round: int, upload: Upload, reason: str) -> None:
        """Take back the acceptance of an upload that turned out to be of no use."""
        self.outcome.take_back(upload, reason)
        logger.warning("round %d: rejected %s: %s", server_round, upload.site.name, reason)

    def require_quorum(self, server_round: int) -> None:
        """Raise FederationError where fewer than ``federation.min_replies`` were accepted, or than were asked."""
        valid = len(self.outcome.accepted)
        needed = min(self.run.config.federation.min_replies, len(self._sent))
        if valid < needed:
            reasons = "; ".join(f"{site}: {why}" for site, why in self.outcome.rejected.items())
            said = (
                f"round {server_round} has {valid} valid replies where federation.min_replies asks for {needed} "
                f"({reasons or 'none was rejected'})"
            )
            if any(" finite" in why for why in self.outcome.rejected.values()):
                rates = self.run.config.learning_rates
                said += f": training diverges where numbers are not finite; lower a learning rate ({rates})"
            raise FederationError(said)

    def _require_finite(self, server_round: int, weights: Weights) -> None:
        for name, tensor in weights.read_only.items():
            if not is_finite(tensor):
                raise DivergedError(
                    f"round {server_round}'s update made the weight '{name}' infinite or NaN, and is not kept: a new "
                    f"run needs a lower learning rate ({self.run.config.learning_rates})"
                )

    def _mean_metrics(self) -> MetricRecord | None:
        """Return the plain mean over the accepted sites of every figure that all of them sent."""
        rows = list(self.outcome.accepted.values())
        if not rows:
            return None
        shared = [key for key in rows[0] if all(key in row for row in rows)]
        return MetricRecord({key: sum(row[key] for row in rows) / len(rows) for key in shared})


def strategy_class(name: str) -> type[Strategy]:
    """Return the strategy of a method: one of Nectar's, or of a user's own.

    Raises
    ------
    ConfigError
        If the method names something else.
    """
    method = resolve(name)
    cls = load(method.strategy)
    if not (isinstance(cls, type) and issubclass(cls, Strategy)):
        raise ConfigError(
            f"{method.strategy} cannot be the strategy of {method.name}: it must inherit strategies.base.Strategy"
        )
    return cls
