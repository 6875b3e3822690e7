"""A round whose replies are awaited: what goes out, which of the replies are accepted, and whether they are enough.

It knows messages, sites and rules, and no method: what a reply means is asked of the strategy (`ScreeningHooks`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from logging import getLogger
from typing import Any

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    RecordDict,
)

from common.errors import ConfigError, DivergedError, FederationError, PayloadError
from common.learning.run import Run
from common.privacy.ledger import LEDGER_TIP, tip_to_text
from common.sites import Site
from common.specs.updates import TAKEN, as_updates, sends_updates
from common.wire.coders import is_finite
from common.wire.npy import unchecked_record
from common.wire.weights import Weights
from strategies.exchange.instructions import Instruction, Serialiser
from strategies.exchange.judging import (
    TOGETHER,
    CandidateModel,
    Clipping,
    UploadScreening,
    group_sizes,
)
from strategies.exchange.members import Members
from strategies.exchange.replies import (
    Upload,
    matched,
    note_failure,
    read_upload,
    reasons_in_words,
    require_records,
)
from strategies.exchange.roll_call import listed
from strategies.exchange.rules import (
    ScreeningHooks,
    compared_parts,
    part_without_rule,
    require_valid,
)

logger = getLogger("flwr")


class OpenRound:
    """A round of a strategy's.

    Parameters
    ----------
    screening : Screening
        The strategy: what is accepted of a reply.
    record_id : str
        Names the run to its sites.
    number : int
        The round's.
    weights : Weights
        What the round begins with.
    """

    def __init__(
        self,
        run: Run,
        members: Members,
        screening: ScreeningHooks,
        record_id: str,
        number: int,
        weights: Weights,
    ) -> None:
        self._run, self._members, self._strategy = run, members, screening
        self._record_id, self.number, self.weights = record_id, number, weights
        self.sent: list[tuple[Message, Site, Instruction]] = []
        self._compared: dict[str, bool] = {}

    @cached_property
    def _rules(self) -> Mapping[str, Any]:
        return self._strategy.validation_rules()

    # ---- what goes out --------------------------------------------------------------------------------

    def compose(
        self,
        plan: Mapping[str, Instruction],
        sites: Sequence[Site],
        config: ConfigRecord,
        arrays: ArrayRecord,
    ) -> list[Message]:
        """Return a message for each of ``sites`` for which ``plan`` has an instruction, in their order.

        ``config`` is in every instruction besides. ``arrays`` is what the round begins with: parts that travel in
        the same bytes share them. ConfigError if a part is asked for that no rule of the strategy covers.
        """
        self._require_rules(plan)
        serialiser = Serialiser(list(arrays.values()))
        for site in (site for site in sites if site.name in plan):
            instruction = plan[site.name]
            fields = {**config, TAKEN: self._members.last_accepted_round.get(site.name, 0)}
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
        """Add the message of one instruction to those that go out; ``fields`` are in its configuration besides."""
        if sends_updates(self._run.config):
            expects = as_updates(instruction.expects, instruction.payload)
            instruction = replace(instruction, expects=expects)
        head = self._members.spending.ledger_tips.get(site.name)
        said = {} if head is None else {LEDGER_TIP: tip_to_text(head)}
        about = {"server-round": self.number, "record": self._record_id, **said}
        about |= self._members.began
        config = unchecked_record(ConfigRecord(), {**fields, **about, "phase": instruction.phase})
        body = serialiser.record(instruction.payload)
        content = unchecked_record(RecordDict(), {"arrays": body, "config": config})
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

    def _require_rules(self, plan: Mapping[str, Instruction]) -> None:
        """Refuse to ask for what would be taken as it comes."""
        for expected in {id(what.expects): what.expects for what in plan.values()}.values():
            part = part_without_rule(expected, self._rules)
            if part is not None:
                raise ConfigError(
                    f"method={self._run.config.method} asks its sites for "
                    f"{f'a part {part!r}' if part else 'a payload'} without a rule in "
                    f"{type(self._strategy).__name__}.validation_rules: add a strategies.exchange.rules.Rule for it"
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
            require_valid(self._rules, self._run.config.wire, self.weights, upload)
            prepared = strategy.prepare(self.number, self.weights, upload)
        except PayloadError as error:
            members.check_memory(site, str(error))
            what = f"round {self.number}: rejected"
            note_failure(members.outcome.rejected, site.name, str(error), what)
            return None
        members.outcome.accept(upload)
        members.log_memory_loss(self.number, prepared)
        return prepared

    def judge(self) -> UploadScreening:
        """Return a judge of the round's uploads, who has seen none of them."""
        federation = self._run.config.federation
        clip = federation.clip if federation.robust == "clip" and self._strategy.clips else 0.0
        earlier = self._members.lengths.usual
        return UploadScreening(
            self._strategy.trials, self.weights, federation.max_update, clip, earlier
        )

    def plausible(
        self, uploads: list[Upload], judge: UploadScreening | None = None
    ) -> Iterator[Upload]:
        """Yield those of a group of prepared uploads that lead somewhere, shortened where they are too long.

        The others are rejected by name. The list is emptied on the way, so that one that was used can be forgotten.
        Without ``judge`` they are compared with each other alone.
        """
        strategy, weights = self._strategy, self.weights
        alone, judge = judge is None, judge or self.judge()
        verdicts = judge.judge(
            [
                CandidateModel(
                    strategy.resulting_model(weights, upload),
                    *strategy.initial_model(weights, upload.site),
                ),
                *compared_parts(self._rules, weights, upload),
            ]
            for upload in uploads
        )
        for verdict in verdicts:
            upload = uploads.pop(0)
            if verdict.compared:
                self._compared[upload.site.name] = verdict.too_long or bool(verdict.shortenings)
            try:
                if verdict.reason is not None:
                    raise PayloadError(verdict.reason + self._weighed * verdict.too_long)
                for clipping in verdict.shortenings:
                    upload = strategy.clipped(upload, clipping)
                    self._note_shortened(upload.site, clipping)
            except PayloadError as error:
                self.reject(upload, str(error))
                continue
            yield upload
            del upload
        if alone:
            self._note_lengths(judge)

    def _note_lengths(self, judge: UploadScreening) -> None:
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

    def _note_shortened(self, site: Site, clipping: Clipping) -> None:
        self._members.outcome.shortened[site.name] = clipping.share
        logger.warning(
            "round %d: shortened %s of %s to %.2g of its length, which is or was usual: it exceeded "
            "federation.clip=%g times the usual length of this round%s",
            self.number,
            f"the part '{clipping.part}'" if clipping.part else "the update",
            site.name,
            clipping.share,
            self._run.config.federation.clip,
            self._weighed,
        )

    @property
    def _weighed(self) -> str:
        """What may make an honest update long where sites weigh their classes; nothing elsewhere."""
        if not self._run.config.weighs_classes:
            return ""
        return (
            ": class_weights=balanced has a site take longer steps with a class that it has few of"
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
        raise FederationError(
            f"round {self.number} has {valid} valid replies where federation.min_replies asks for {needed} "
            f"({reasons_in_words(outcome.rejected) or 'none was rejected'}){self._divergence()}"
        )

    def _divergence(self) -> str:
        """Return what to do about numbers that are not finite, if sites were rejected for such."""
        reasons = self._members.outcome.rejected.values()
        if not any(" finite" in why or "FloatingPoint" in why for why in reasons):
            return ""
        rates = self._run.config.learning_rates
        return f": training diverges where numbers are not finite; lower a learning rate ({rates})"

    def require_finite(self, weights: Weights) -> None:
        """Raise DivergedError where the new weights are no numbers."""
        for name, tensor in weights.read_only.items():
            if not is_finite(tensor):
                raise DivergedError(
                    f"round {self.number}'s update made the weight '{name}' infinite or NaN, and is not kept: a new "
                    f"run needs a lower learning rate ({self._run.config.learning_rates})"
                )
