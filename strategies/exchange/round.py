"""One round's exchange: what goes out, which of the replies are believed, and whether they are enough.

It knows messages, sites and bounds, and no method: what a reply means is asked of the strategy that holds the round.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, repeat
from logging import getLogger
from typing import TYPE_CHECKING, Any

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)

from common.errors import ConfigError, DivergedError, FederationError, PayloadError
from common.learning.run import Run
from common.privacy.ledger import HEAD, written
from common.sites import Site
from common.specs.updates import TAKEN, as_updates, in_part, sends_updates
from common.wire import codec as npy
from common.wire.bundle import Bundle
from common.wire.codec import Payload, Spec, array_of, filled, is_finite, record_of
from common.wire.weights import Lent, Weights, view_of
from strategies.exchange.judging import TOGETHER, Judge, Led, Shortening, absurd_losses, group_sizes
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
from strategies.exchange.roll_call import listed
from strategies.exchange.rules import held_beside, require_believable, unbounded

if TYPE_CHECKING:
    from strategies.federated import Federated


logger = getLogger("flwr")


@dataclass(frozen=True)
class Instruction:
    """What one site is asked: a phase of its client, the payload it gets, and what it must send back."""

    phase: str
    payload: Payload
    expects: Spec


class Round:
    """A round of a strategy's.

    Parameters
    ----------
    strategy : Federated
        Says what of a reply is believed, and who the members are.
    weights : Weights
        What the round begins with.
    """

    def __init__(self, strategy: Federated, number: int, weights: Weights) -> None:
        self._strategy, self.number, self.weights = strategy, number, weights
        self._run, self._members = strategy.run, strategy.members
        self.sent: list[tuple[Message, Site, Instruction]] = []
        self._compared: dict[str, bool] = {}

    @cached_property
    def _bounds(self) -> Mapping[str, Any]:
        return self._strategy.bounds()

    # ---- what goes out --------------------------------------------------------------------------------

    def compose(
        self,
        plan: Mapping[str, Instruction],
        sites: Sequence[Site],
        config: ConfigRecord,
        arrays: ArrayRecord,
    ) -> list[Message]:
        """Return a message for each of ``sites`` for which ``plan`` has an instruction, in their order.

        ``config`` stands in every instruction besides. ``arrays`` is what the round begins with: parts that travel in
        the same bytes share them. ConfigError if a part is asked for of which the strategy's ``bounds`` say nothing.
        """
        self._require_bounds(plan)
        serialiser = Serialiser(self._run.config.wire.compression, list(arrays.values()))
        for site in (site for site in sites if site.name in plan):
            instruction = plan[site.name]
            if site.reviewed:
                instruction = replace(instruction, expects=in_part(instruction.expects))
            fields = {**config, TAKEN: self._members.taken.get(site.name, 0)}
            self.ask(site, instruction, serialiser, fields)
        return self.messages

    def ask(
        self,
        site: Site,
        instruction: Instruction,
        serialiser: Serialiser,
        fields: Mapping[str, Any],
        kind: str = MessageType.TRAIN,
    ) -> None:
        """Add the message of one instruction to those that go out; ``fields`` stand in its configuration besides."""
        if sends_updates(self._run.config):
            expects = as_updates(instruction.expects, instruction.payload)
            instruction = replace(instruction, expects=expects)
        head = self._members.spending.heads.get(site.name)
        said = {} if head is None else {HEAD: written(head)}
        about = {"server-round": self.number, "record": self._strategy.record_id, **said}
        about |= self._members.began
        config = filled(ConfigRecord(), {**fields, **about, "phase": instruction.phase})
        body = serialiser.record(instruction.payload)
        content = filled(RecordDict(), {"arrays": body, "config": config})
        message = Message(content, site.node_id, kind, group_id=str(self.number))
        self.sent.append((message, site, instruction))

    @property
    def messages(self) -> list[Message]:
        """What goes out, in site order."""
        return [message for message, _, _ in self.sent]

    @property
    def max_reply_bytes(self) -> list[int]:
        """The most bytes of arrays in the reply to each of the messages, in their order."""
        return [instruction.expects.max_bytes for _, _, instruction in self.sent]

    def _require_bounds(self, plan: Mapping[str, Instruction]) -> None:
        """Refuse to ask for what would be taken as it comes."""
        for expected in {id(what.expects): what.expects for what in plan.values()}.values():
            part = unbounded(expected, self._bounds)
            if part is not None:
                raise ConfigError(
                    f"method={self._run.config.method} asks its sites for "
                    f"{f'a part {part!r}' if part else 'a payload'} of which {type(self._strategy).__name__}.bounds "
                    "says nothing: add a strategies.exchange.rules.Bound for it"
                )

    # ---- what comes back ------------------------------------------------------------------------------

    def accepted(self, replies: Iterable[Message]) -> Iterator[Upload]:
        """Yield the uploads that pass, note those that do not, and insist on the quorum at the end.

        They are read and judged in groups: each group is held decoded until all of it is compared, and nothing beyond.
        """
        answers, judge = matched(replies, self.sent), self.judge()
        wave = self._run.config.federation.wave or TOGETHER
        sizes = group_sizes(wave, max(self.max_reply_bytes, default=0))
        while together := list(islice(answers, next(sizes))):
            ready: list[Upload] = []
            while together:
                upload = self.validated(*together.pop(0))
                if upload is not None:
                    ready.append(upload)
                del upload  # or the last of a group is held while the next group is read
            yield from self.plausible(ready, judge)
        self._note_lengths(judge)
        self.require_quorum()

    def validated(self, reply: Message, site: Site, instruction: Instruction) -> Upload | None:
        """Return what a reply brings as the strategy prepared it; None of one that is rejected, with the reason noted.

        The order matters. Charges are taken first: they have left the site, whatever else the reply is. The strategy
        prepares only what is within its bounds. Figures are taken only of what the strategy could use.
        """
        strategy, members = self._strategy, self._members
        try:
            require_records(reply, strategy.records)
            members.spending.take_from(reply, site.name, self._run.config.noises)
            upload = read_upload(reply, site, instruction.expects)
            require_believable(self._bounds, self._run.config.wire, self.weights, upload)
            prepared = strategy.prepare(self.number, self.weights, upload)
        except PayloadError as error:
            members.require_memory(site, str(error))
            members.outcome.rejected[site.name] = str(error)
            logger.warning("round %d: rejected %s: %s", self.number, site.name, error)
            return None
        members.outcome.accept(upload)
        members.tell_memory(self.number, prepared)
        return prepared

    def judge(self) -> Judge:
        """Return a judge of the round's uploads, who has seen none of them."""
        federation = self._run.config.federation
        clip = federation.clip if federation.robust == "clip" and self._strategy.clips else 0.0
        earlier = self._members.lengths.usual
        return Judge(self._strategy.trials, self.weights, federation.max_update, clip, earlier)

    def plausible(self, uploads: list[Upload], judge: Judge | None = None) -> Iterator[Upload]:
        """Yield those of a group of prepared uploads that lead somewhere, shortened where they are too long.

        The others are rejected by name. The list is emptied on the way, so that one that was used can be forgotten.
        Without ``judge`` they are compared with each other alone.
        """
        strategy, weights = self._strategy, self.weights
        alone, judge = judge is None, judge or self.judge()
        verdicts = judge.judge(
            [
                Led(strategy.leads_to(weights, upload), *strategy.start_of(weights, upload.site)),
                *held_beside(self._bounds, weights, upload),
            ]
            for upload in uploads
        )
        for verdict in verdicts:
            upload = uploads.pop(0)
            if verdict.compared:
                self._compared[upload.site.name] = verdict.too_long or bool(verdict.shortenings)
            try:
                if verdict.reason is not None:
                    raise PayloadError(verdict.reason)
                for shortening in verdict.shortenings:
                    upload = strategy.shortened(upload, shortening)
                    self._note_shortened(upload.site, shortening)
            except PayloadError as error:
                self.reject(upload, str(error))
                continue
            yield upload
            del upload
        if alone:
            self._note_lengths(judge)

    def _note_lengths(self, judge: Judge) -> None:
        """Keep how long the round's updates were; say so where a site's count less again, or those of a third do."""
        history, federation = self._members.lengths, self._run.config.federation
        long = [site for site, was_long in self._compared.items() if was_long]
        again = [site for site in long if site in history.long]
        if again or len(long) * 3 >= len(self._compared) > 0:
            settings = {
                f"federation.max_update={federation.max_update:g}"
                if site in self._members.outcome.rejected
                else f"federation.clip={federation.clip:g}"
                for site in long
            }
            logger.warning(
                "LONG UPDATES, round %d: those of %d of %d sites are left out or shortened (%s)%s; if they are "
                "honest, the model hardly learns what they alone hold: raise %s",
                *(self.number, len(long), len(self._compared), listed(long)),
                f", for a second round running those of {listed(again)}" if again else "",
                " and ".join(sorted(settings)),
            )
        history.note(self.number, judge.usual(), self._compared)

    def _note_shortened(self, site: Site, shortening: Shortening) -> None:
        self._members.outcome.shortened[site.name] = shortening.share
        logger.warning(
            "round %d: shortened %s of %s to %.2g of its length, which is or was usual: it exceeded "
            "federation.clip=%g times the usual length of this round",
            self.number,
            f"the part '{shortening.part}'" if shortening.part else "the update",
            site.name,
            shortening.share,
            self._run.config.federation.clip,
        )

    def reject(self, upload: Upload, reason: str) -> None:
        """Take back the acceptance of an upload that turned out to be of no use."""
        self._members.outcome.take_back(upload, reason)
        logger.warning("round %d: rejected %s: %s", self.number, upload.site.name, reason)

    # ---- whether it is enough -------------------------------------------------------------------------

    def require_quorum(self) -> None:
        """Raise FederationError where fewer were accepted than the strategy's quorum of those that were asked."""
        outcome = self._members.outcome
        valid, needed = len(outcome.accepted), self._strategy.quorum(len(self.sent))
        if valid >= needed:
            return
        reasons = "; ".join(f"{site}: {why}" for site, why in outcome.rejected.items())
        said = (
            f"round {self.number} has {valid} valid replies where federation.min_replies asks for {needed} "
            f"({reasons or 'none was rejected'})"
        )
        if any(" finite" in why or "FloatingPoint" in why for why in outcome.rejected.values()):
            rates = self._run.config.learning_rates
            said += (
                f": training diverges where numbers are not finite; lower a learning rate ({rates})"
            )
        raise FederationError(said)

    def require_finite(self, weights: Weights) -> None:
        """Raise DivergedError where the new weights are no numbers."""
        for name, tensor in weights.read_only.items():
            if not is_finite(tensor):
                raise DivergedError(
                    f"round {self.number}'s update made the weight '{name}' infinite or NaN, and is not kept: a new "
                    f"run needs a lower learning rate ({self._run.config.learning_rates})"
                )


# ---- evaluating ----------------------------------------------------------------------------------
# What the sites make of a round's weights on what they hold out: asked with one round, answered with the next.


@dataclass(frozen=True)
class Evaluation:
    """Who was asked about a round's weights.

    Attributes
    ----------
    outcome : Outcome
        The round's: what is answered, or refused, is noted there, also when the next round has begun.
    """

    outcome: Outcome = field(default_factory=Outcome)
    sites: Sequence[Site] = ()

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
        serialiser = Serialiser(run.config.wire.compression, list(arrays.values()))
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

        A loss is absurd beside that of guessing among ``classes``. With ``any_record`` a reply may hold records of any
        name.
        """
        names = None if any_record else EVALUATION_RECORDS
        figures = self._read(server_round, replies, names)
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
        self, server_round: int, replies: Iterable[Message], names: Collection[str] | None
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
                figures[site.name] = read_evaluation(reply, site.held_out)
            except PayloadError as error:
                self._leave_out(server_round, site.name if site else f"node {node}", str(error))
        return figures

    def _leave_out(self, server_round: int, site: str, reason: str) -> None:
        self.outcome.unevaluated[site] = reason
        logger.warning("round %d: rejected the evaluation of %s: %s", server_round, site, reason)


# ---- serialising ---------------------------------------------------------------------------------
# What payloads travel as: each part serialised once a round, however many sites get it.


class Serialiser:
    """Serialises a round's payloads, and keeps what a payload or a part of a bundle has become for the next site.

    It goes by the object: what it is given must live as long as it does, and stay as it is.

    Parameters
    ----------
    compression : str
        The run's ``wire.compression``.
    known : sequence of Array
        What the round begins with: weights that travel in the same bytes share theirs.
    """

    def __init__(self, compression: str, known: Sequence[Array] = ()) -> None:
        self._compression, self._known = compression, known
        self._kept: dict[int, list[Array]] = {}
        self._records: dict[int, ArrayRecord] = {}

    def record(self, payload: Payload) -> ArrayRecord:
        """Return what travels instead of ``payload``, the same object each time: nobody is to change it."""
        if id(payload) not in self._records:
            self._records[id(payload)] = self._put_together(payload)
        return self._records[id(payload)]

    def _put_together(self, payload: Payload) -> ArrayRecord:
        parts = payload.parts if isinstance(payload, Bundle) else {"": payload}
        arrays: list[Array] = []
        counts: dict[str, int] = {}
        for name, part in parts.items():
            kept = self._once(part)
            arrays += kept
            counts[name] = len(kept)
        if isinstance(payload, Bundle):
            arrays.insert(0, array_of(Bundle.head(counts)))
        return record_of(arrays)

    def _once(self, part: Payload) -> list[Array]:
        if id(part) not in self._kept:
            encoded = part.encode(self._compression)
            places = [None, *self._known] if len(encoded) == 1 + len(self._known) else repeat(None)
            self._kept[id(part)] = [
                _shared(array_of(ndarray), known)
                for ndarray, known in zip(encoded, places, strict=False)
            ]
        return self._kept[id(part)]


def _shared(array: Array, known: Array | None) -> Array:
    return known if known is not None and known.data == array.data else array


def weights_from(run: Run, arrays: ArrayRecord) -> Weights:
    """Return Flower's arrays as Weights in the model's dtypes: views of their bytes, copied when asked for."""
    spec = run.spec
    views = {
        name: view_of(npy.read(arrays[name].data)).to(dtype)
        for name, dtype in zip(spec.names, spec.dtypes, strict=True)
    }
    return Weights(Lent(views), run.config.wire.whole_weights)


def arrays_from(weights: Weights) -> ArrayRecord:
    """Return Weights as Flower's arrays, one a tensor under its own name."""
    return ArrayRecord(dict(weights.read_only))
