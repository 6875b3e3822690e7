"""What is accepted of a round's replies: each by its form and its rules, all compared with the others.

An update is absurdly long only compared with others. Holding all of a round decoded would cost memory that grows
with the federation, so uploads are compared in groups of ``TOGETHER``, or fewer where they are large, each with its
group and with the lengths of those judged before. Where sites train several architectures, each is compared with those
of its kind: a deeper network is another number of weights, which move by another length. What was usual in an earlier
round is never too long: where half of the sites have learned all they can, the other half is not to be shut out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from logging import getLogger
from typing import TYPE_CHECKING

import torch
from flwr.app import Message
from torch import Tensor

from common.code.imports import is_import_path
from common.draws.seeding import generator
from common.errors import PayloadError
from common.learning.compute import return_if_large
from common.learning.run import Run
from common.models import Classifier
from common.sites import Site
from common.wire.bundle import leaves
from common.wire.coders import is_finite
from common.wire.weights import Weights
from strategies.exchange.instructions import Instruction
from strategies.exchange.lengths import (
    ENOUGH,
    length_of,
    shares_kept,
    too_long,
    weights_length,
)
from strategies.exchange.membership import listed
from strategies.exchange.replies import Upload, note_failure, read_upload, require_names
from strategies.exchange.rules import (
    STATISTICS,
    CandidateModel,
    Clipping,
    require_valid,
    rule_of,
)

if TYPE_CHECKING:
    from strategies.federated import Federated

logger = getLogger("flwr")

#: uploads that are held, decoded, until all of them are compared, and the bytes beyond which they are fewer
TOGETHER, _HELD = 16, 2**26

#: inputs that a model is tried on
_TRIED = 4

# ---- whether a model gives numbers ---------------------------------------------------------------


class FiniteCheck:
    """Whether weights make a model that gives numbers, tried on inputs of no data set."""

    def __init__(self, run: Run) -> None:
        # The sites' own tensors have their initial values, and the batch's statistics normalise.
        model: Classifier = run.build_model().train(run.config.model.stays_in_part)
        self._run, self._model = run, model.requires_grad_(False)
        places = model.state_dict(keep_vars=True)
        self._places = {name: places[name] for name in run.spec.names}
        self._let_go(name for name, _ in model.named_parameters() if name in self._places)

    @cached_property
    def _inputs(self) -> Tensor:
        info, draws = self._run.info, generator(self._run.config.seed, "trial")
        if info.has_values:
            drawn = torch.randn(_TRIED, *info.shape, generator=draws)
        else:
            drawn = torch.randint(len(info.classes), (_TRIED, *info.shape), generator=draws)
        return drawn.to(self._run.device)

    @torch.no_grad()
    def gives_numbers(self, weights: Weights) -> bool:
        """Return whether every output is finite."""
        # Lent where it can be: none of Nectar's models writes to its state when it is called, a user's may.
        own, device = is_import_path(self._run.config.model.name), self._run.device
        for name, tensor in weights.read_only.items():
            self._places[name].data = tensor.to(device, copy=own)
        found = is_finite(self._model(self._inputs))
        self._let_go(weights.read_only)
        return found

    def _let_go(self, names: Iterable[str]) -> None:
        for name in names:
            self._places[name].data = self._places[name].new_empty(0)


# ---- one round's uploads -------------------------------------------------------------------------


def group_sizes(most: int, max_bytes: int) -> Iterator[int]:
    """Yield how many uploads are compared together, group by group: ``ENOUGH`` at first, with none before them.

    Parameters
    ----------
    most : int
        How many any later group may have.
    max_bytes : int
        What the largest upload of the round may take.
    """
    size = max(1, min(most, TOGETHER, _HELD // max(1, max_bytes)))
    yield max(size, ENOUGH)
    yield from repeat(size)


class _Peers:
    """A comparison group: the uploads of one architecture, or of one part."""

    def __init__(
        self, check: FiniteCheck | None, like: CandidateModel, weights: Weights, earlier: float
    ) -> None:
        self._check, self._start, self.part, self.earlier = check, like.start, like.part, earlier
        # What starts at 0, such as a control variate, is compared with the weights' length if it is the only one.
        self.own = weights_length(like.start) or weights_length(weights)
        self.passed: list[float] = []

    @cached_property
    def _sound(self) -> bool:
        """Whether the round's own weights give numbers: where they do not, no upload can be blamed."""
        return self._check is not None and self._check.gives_numbers(self._start)

    def fault(self, model: Weights) -> str | None:
        if self._check is None or not self._sound or self._check.gives_numbers(model):
            return None
        return "with its weights the model gives no finite numbers"


@dataclass
class _Verdict:
    """What was found of an upload: why it is unusable, its lengths and what they are measured from, and what is cut."""

    reason: str | None = None
    too_long: bool = False  # its length alone is the reason
    lengths: dict[_Peers, tuple[float, Weights]] = field(default_factory=dict)
    clippings: list[Clipping] = field(default_factory=list)


class Screen:
    """Accepts a round's replies one by one; compares a group's uploads with each other and with those before them.

    Parameters
    ----------
    strategy : Federated
        What an upload means.
    number : int
        The round's.
    weights : Weights
        The round's initial weights.
    """

    def __init__(self, strategy: Federated, number: int, weights: Weights) -> None:
        self._strategy, self._members = strategy, strategy.members
        self._config, self._number, self._weights = strategy.run.config, number, weights
        self._rules = strategy.validation_rules()
        self._peers: dict[tuple[str, str], _Peers] = {}
        self._was_long: dict[str, bool] = {}  # of sites whose update was compared
        self._peers_of(CandidateModel(None, weights))  # its model is built before uploads come

    def accept(self, reply: Message, site: Site, asked: Instruction) -> Upload | None:
        """Return a reply's upload, prepared by the strategy; None if it is rejected, with the reason noted.

        The order matters. Charges are taken first: they have left the site, even if the reply is rejected. The strategy
        prepares only what is within its bounds. Figures are taken only of what the strategy could use.
        """
        strategy, members = self._strategy, self._members
        try:
            require_names(reply, strategy.records)
            members.spending.take_from(reply, site.name, self._config.noises)
            upload = read_upload(reply, site, asked.expects)
            require_valid(self._rules, self._config.wire, self._weights, upload)
            prepared = strategy.prepare(self._number, self._weights, upload)
        except PayloadError as error:
            members.check_memory(site, str(error))
            what = f"round {self._number}: rejected"
            note_failure(members.outcome.rejected, site.name, str(error), what)
            return None
        members.outcome.accept(upload)
        members.log_memory_loss(self._number, prepared)
        return prepared

    def judge(self, group: list[Upload]) -> Iterator[Upload]:
        """Yield those of a group of accepted uploads that lead somewhere, shortened where they are too long.

        The others are rejected by name. The list is emptied on the way, so that one that was used can be forgotten.
        """
        verdicts = self._compared(group)
        return filter(None, (self._shortened(group.pop(0), verdict) for verdict in verdicts))

    def reject(self, upload: Upload, reason: str) -> None:
        """Revoke the acceptance of an upload that turned out to be unusable."""
        outcome, site = self._members.outcome, upload.site.name
        outcome.rejected[site] = reason
        del outcome.accepted[site], outcome.floats[site]
        outcome.shortened.pop(site, None)
        logger.warning("round %d: rejected %s: %s", self._number, site, reason)

    def close(self) -> None:
        """Keep how long the round's updates were; say so where a site's count less again, or those of a third do."""
        history, federation = self._members.lengths, self._config.federation
        long = [site for site, was_long in self._was_long.items() if was_long]
        again = [site for site in long if site in history.long]
        if again or len(long) * 3 >= len(self._was_long) > 0:
            settings = {
                f"federation.max_update={federation.max_update:g}"
                if site in self._members.outcome.rejected
                else f"federation.clip={federation.clip:g}"
                for site in long
            }
            logger.warning(
                "LONG UPDATES, round %d: those of %d of %d sites are left out or shortened (%s)%s; if they are "
                "honest, the model hardly learns what they alone hold: raise %s",
                *(self._number, len(long), len(self._was_long), listed(long)),
                f", for a second round running those of {listed(again)}" if again else "",
                " and ".join(sorted(settings)),
            )
        passed = {key: sorted(peers.passed) for key, peers in self._peers.items() if peers.passed}
        usual = {key: lengths[len(lengths) // 2] for key, lengths in passed.items()}
        history.note(self._number, usual, self._was_long)

    # ---- compared with the others ---------------------------------------------------------------------

    def _peers_of(self, candidate: CandidateModel) -> _Peers:
        key = candidate.architecture, candidate.part
        if key not in self._peers:
            earlier = self._members.lengths.usual.get(key, 0.0)
            check = None if candidate.part else self._strategy.finite_check(candidate.architecture)
            self._peers[key] = _Peers(check, candidate, self._weights, earlier)
        return self._peers[key]

    def _measured(self, upload: Upload) -> _Verdict:
        """Return the lengths of an upload's models by comparison group, and whether they give finite numbers."""
        strategy, weights, verdict = self._strategy, self._weights, _Verdict()
        initial = strategy.initial_model(weights, upload.site)
        model = CandidateModel(strategy.resulting_model(weights, upload), *initial)
        parts = [
            rule.candidate(weights, upload, part)
            for path, part in leaves(upload.payload)
            if (rule := rule_of(path, self._rules)) is not None and rule.candidate is not None
        ]
        for each in (model, *parts):
            if each.model is not None:
                verdict.reason = verdict.reason or self._peers_of(each).fault(each.model)
                for peers, start in self._starts_of(each):
                    verdict.lengths[peers] = length_of(each.model, start), start
        return verdict

    def _starts_of(self, candidate: CandidateModel) -> Iterator[tuple[_Peers, Weights]]:
        """Yield what an upload is compared with, and from where its length counts.

        A model's running statistics are compared separately from its parameters: they are as long, and falsified
        statistics alone would leave the total at its usual length.
        """
        start = candidate.start.read_only
        trained = frozenset(self._strategy.run.with_model(candidate.architecture).spec.trained)
        floats = {n: t for n, t in start.items() if n not in trained and t.is_floating_point()}
        if candidate.part or not floats:
            yield self._peers_of(candidate), candidate.start
            return
        yield self._peers_of(candidate), Weights({n: t for n, t in start.items() if n in trained})
        statistics = Weights(floats)
        yield self._peers_of(replace(candidate, start=statistics, part=STATISTICS)), statistics

    def _compared(self, group: list[Upload]) -> list[_Verdict]:
        verdicts, federation = [*map(self._measured, group)], self._config.federation
        alike: dict[_Peers, list[_Verdict]] = {}
        for verdict in verdicts:
            for peers in verdict.lengths:
                alike.setdefault(peers, []).append(verdict)
        for peers, those in alike.items():
            lengths = [*peers.passed, *(verdict.lengths[peers][0] for verdict in those)]
            known, earlier = len(peers.passed), peers.earlier
            most = federation.max_update
            reasons = too_long(lengths, peers.own, most, known=known, earlier=earlier)
            for verdict, reason in zip(those, reasons, strict=True):
                verdict.too_long |= verdict.reason is None and reason is not None
                verdict.reason = verdict.reason or reason
        clips = federation.robust == "clip" and self._strategy.clips
        for peers, those in alike.items():
            passing, known = [v for v in those if v.reason is None], len(peers.passed)
            peers.passed += [verdict.lengths[peers][0] for verdict in passing]
            clip, earlier = federation.clip * clips, peers.earlier
            shares = shares_kept(peers.passed, clip, known=known, earlier=earlier)
            for verdict, share in zip(passing, shares, strict=True):
                if share < 1:
                    verdict.clippings.append(Clipping(peers.part, verdict.lengths[peers][1], share))
        # Or the memory of the trials would stay fragmented between the sums.
        return_if_large(sum(t.nbytes for t in self._weights.read_only.values()))
        return verdicts

    def _shortened(self, upload: Upload, verdict: _Verdict) -> Upload | None:
        """Return an upload as far as it counts; None if it is rejected."""
        if verdict.lengths:
            self._was_long[upload.site.name] = verdict.too_long or bool(verdict.clippings)
        try:
            if verdict.reason is not None:
                raise PayloadError(verdict.reason + self._weighed * verdict.too_long)
            for clipping in verdict.clippings:
                upload = self._strategy.clipped(upload, clipping)
                self._members.outcome.shortened[upload.site.name] = clipping.share
                logger.warning(
                    "round %d: shortened %s of %s to %.2g of its length, which is or was usual: it exceeded "
                    "federation.clip=%g times the usual length of this round%s",
                    self._number,
                    f"the part '{clipping.part}'" if clipping.part else "the update",
                    *(upload.site.name, clipping.share, self._config.federation.clip),
                    self._weighed,
                )
        except PayloadError as error:
            self.reject(upload, str(error))
            return None
        return upload

    @property
    def _weighed(self) -> str:
        """The hint that class weights may make an honest update long; empty without class weights."""
        if not self._config.weighs_classes:
            return ""
        return (
            ": class_weights=balanced has a site take longer steps with a class that it has few of"
        )
