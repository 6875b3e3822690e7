"""A round whose replies are awaited: what goes out, which of the replies are accepted, and whether they are enough.

It knows messages, sites and rules, but no method: the strategy decides what a reply means.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice, starmap
from logging import getLogger
from typing import TYPE_CHECKING, Any

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    RecordDict,
)

from common.errors import ConfigError, DivergedError, FederationError
from common.learning.compute import is_large, return_freed_memory
from common.privacy.ledger import LEDGER_TIP, tip_to_text
from common.sites import Site
from common.specs.updates import TAKEN, as_updates, sends_updates
from common.wire.bundle import leaves
from common.wire.coders import is_finite
from common.wire.npy import unchecked_record
from common.wire.weights import Weights
from strategies.exchange.instructions import Instruction, Serialiser
from strategies.exchange.replies import (
    Upload,
    matched,
    reasons_in_words,
)
from strategies.exchange.rules import rule_of
from strategies.exchange.screening import (
    TOGETHER,
    Screen,
    group_sizes,
)

if TYPE_CHECKING:
    from strategies.federated import Federated

logger = getLogger("flwr")


class OpenRound:
    """A round of a strategy's.

    Parameters
    ----------
    number : int
        The round's.
    weights : Weights
        What the round begins with.
    """

    def __init__(self, strategy: Federated, number: int, weights: Weights) -> None:
        self._strategy, self._config = strategy, strategy.run.config
        self._members = strategy.members
        self.number, self.weights = number, weights
        self.sent: list[tuple[Message, Site, Instruction]] = []

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
        the same bytes share them. ConfigError if a requested part is covered by no rule of the strategy.
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
        if sends_updates(self._config):
            expects = as_updates(instruction.expects, instruction.payload)
            instruction = replace(instruction, expects=expects)
        head = self._members.spending.ledger_tips.get(site.name)
        said = {} if head is None else {LEDGER_TIP: tip_to_text(head)}
        about = {"server-round": self.number, "record": self._strategy.record_id, **said}
        about |= self._members.data_fields
        config = unchecked_record(ConfigRecord(), {**fields, **about, "phase": instruction.phase})
        body = serialiser.record(instruction.payload)
        question = self._members.evaluation.question_beside(body, site)
        content = unchecked_record(RecordDict(), {"arrays": body, "config": config, **question})
        message = Message(content, site.node_id, kind, group_id=str(self.number))
        self.sent.append((message, site, instruction))

    @property
    def messages(self) -> list[Message]:
        """The messages to send, in site order."""
        return [message for message, _, _ in self.sent]

    @property
    def max_reply_bytes(self) -> list[int]:
        """The most bytes of arrays in the reply to each of the messages, in their order."""
        return [instruction.expects.max_bytes for _, _, instruction in self.sent]

    def _require_rules(self, plan: Mapping[str, Instruction]) -> None:
        """Refuse to ask for what would be taken as it comes."""
        rules = self._strategy.validation_rules()
        for expected in {id(what.expects): what.expects for what in plan.values()}.values():
            part = next(
                (path for path, _ in leaves(expected) if rule_of(path, rules) is None), None
            )
            if part is not None:
                raise ConfigError(
                    f"method={self._config.method} asks its sites for "
                    f"{f'a part {part!r}' if part else 'a payload'} without a rule in "
                    f"{type(self._strategy).__name__}.validation_rules: add a strategies.exchange.rules.Rule for it"
                )

    # ---- what comes back ------------------------------------------------------------------------------

    @cached_property
    def screen(self) -> Screen:
        """The screen that accepts or rejects replies."""
        return Screen(self._strategy, self.number, self.weights)

    def accepted(self, replies: Iterable[Message]) -> Iterator[Upload]:
        """Yield the uploads that pass, note those that do not, and insist on the quorum at the end.

        They are read and compared in groups: a group is held decoded until all of it is compared, and nothing beyond.
        """
        came, group = matched(replies, self.sent), list[Upload]()
        wave = self._config.federation.wave or TOGETHER
        most = max(self.max_reply_bytes, default=0)
        for size in group_sizes(wave, most):
            # Read one after the other: the code of a step then stays in the processor's cache.
            while part := [*islice(came, size - len(group))]:
                group += filter(None, starmap(self.screen.accept, part))
            if not group:
                break
            several = len(group) > 1
            yield from self.screen.judge(group)
            if several and is_large(most):  # what they took is free in pieces
                return_freed_memory()
        self.screen.close()
        self.require_quorum()

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
        """Return advice on non-finite numbers, if sites were rejected for them."""
        reasons = self._members.outcome.rejected.values()
        if not any(" finite" in why or "FloatingPoint" in why for why in reasons):
            return ""
        rates = self._config.learning_rates
        return f": training diverges where numbers are not finite; lower a learning rate ({rates})"

    def require_finite(self, weights: Weights) -> None:
        """Raise DivergedError where the new weights are no numbers."""
        for name, tensor in weights.read_only.items():
            if not is_finite(tensor):
                raise DivergedError(
                    f"round {self.number}'s update made the weight '{name}' infinite or NaN, and is not kept: a new "
                    f"run needs a lower learning rate ({self._config.learning_rates})"
                )
