"""The server's phase of a secret sum (Bonawitz et al., 2017): keys, shares, masked vectors, opening.

Three exchanges a round: the keys of a round come with the opening of the one before, and are requested separately
where there are none. A site that misses one of them is missing in the total; below the threshold nothing is
opened.

What fails before a share has been requested to open it is tried again, as another attempt of the round: with other
keys, and without the sites that have lied. Once shares have come no total of these vectors is opened again, since the
difference of two is some sites' own: the model is unchanged. Nor is anything requested again under noise once sites
have been charged.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, compress
from logging import getLogger
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from common.config.secret import switched_off
from common.errors import FederationError, PayloadError
from common.learning.run import Run
from common.privacy.accounting import epsilon
from common.secret import cohort, messages
from common.secret.cohort import (
    RECORD,
    colluders_of,
    shares_of,
    stated,
    threshold_of,
)
from common.secret.crypto import (
    KeyContext,
    add_mask,
    commitment,
    joined,
    own_key,
    pair_is_minus,
    pair_key,
    point_of,
    public_of,
    weights_of,
)
from common.secret.summand import ACCUSED, MASKED, SumForm, by_counts, event_of, form_of
from common.sites import ALL_SITES, Site
from common.wire.npy import unchecked_record
from common.wire.tensors import Tensors
from common.wire.weights import Weights
from strategies.base import Instruction, State, Strategy
from strategies.exchange.exchange import exchange
from strategies.exchange.instructions import weights_from
from strategies.exchange.membership import listed
from strategies.exchange.open_round import OpenRound
from strategies.exchange.replies import (
    Outcome,
    Upload,
    matched,
    read_upload,
    reasons_in_words,
    rejection_reason,
    require_names,
)

logger = getLogger("flwr")

_INSIDE = "secret-inside"

#: the records of an answer to a query of the phase
_RECORDS = frozenset({RECORD})


class SumFailedError(FederationError):
    """A round's sum that came to nothing."""


@dataclass(frozen=True)
class _Keys:
    """A site's public keys for one round."""

    round: int
    seal: bytes
    mask: bytes


@dataclass
class _Sum:
    """One round's sum: who was asked, whose keys the others know, who has shared, and the vectors' form."""

    place: KeyContext
    asked: int
    threshold: int
    sites: list[Site]
    keys: Mapping[str, _Keys]
    sealed: dict[str, Mapping[str, bytes]] = field(default_factory=dict)
    commitments: dict[str, bytes] = field(default_factory=dict)
    form: SumForm | None = None
    opened: bool = False

    @property
    def names(self) -> list[str]:
        """The sites whose keys all others know, in the order of their shares."""
        return [site.name for site in self.sites]


class SecretSum:
    """Opens totals of a strategy's sites, round by round.

    Parameters
    ----------
    strategy : Strategy
        Whose run, members and record these are.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy, self._attempt = strategy, secrets.token_hex(16)
        self._keys: dict[str, _Keys] = {}
        self.grid: Grid | None = None
        self.inside: list[int] = []  # sites in each total under noise
        self._now: _Sum | None = None
        self._out: dict[str, str] = {}  # why sites have no part in the round
        self._tried: list[int] = []  # how many these were, by failed attempt
        config = strategy.run.config
        logger.info("%s", stated(config.federation))
        for sentence in switched_off(config):
            logger.info("%s", sentence)

    # ---- attempts at a round ----------------------------------------------------------------------

    def new_round(self) -> None:
        """Let all sites take part again."""
        self._out, self._tried = {}, []

    def try_again(self, error: SumFailedError) -> None:
        """Start another attempt at the failed round; raise ``error`` if no further attempt is allowed.

        A second one is made for any failure, such as for sites that were away; each further one, up to as many as
        liars are withstood, only without a site that took part in the last.
        """
        now, private = self._sum, self._strategy.run.config.private
        self._tried.append(len(self._out))
        fewer = len(self._tried) == 1 or self._tried[-1] > self._tried[-2]
        asked = private and now.form is not None
        if now.opened or asked or not fewer or len(self._tried) > self._liars:
            raise error
        logger.warning("%s: it is tried again", error)
        self._attempt = secrets.token_hex(16)
        self._keys.clear()
        self._strategy.outcome.rejected = dict(self._out)

    @property
    def _liars(self) -> int:
        """How many sites may lie about others: as many as collude, and one where none does."""
        return max(1, colluders_of(self._strategy.run.config.federation, self._sum.asked))

    def _leave_out(self, name: str, why: str) -> None:
        """Exclude a site from the round."""
        self._out[name] = self._strategy.outcome.rejected[name] = why
        logger.warning("round %d: without %s: %s", self._sum.place.round, name, why)

    # ---- before the instructions ------------------------------------------------------------------

    def begin(self, number: int, sites: Sequence[Site]) -> list[Site]:
        """Return the sites that take part in a round's sum: those that have given keys, and shares of their secrets.

        Raises
        ------
        FederationError
            If they are fewer than the threshold.
        """
        self._require_shares()
        place = KeyContext(self._strategy.record_id, number, self._attempt)
        federation, asked = self._strategy.run.config.federation, len(sites)
        counted_on = round(federation.participation * self._strategy.members.counted_on)
        most = threshold_of(federation, max(asked, counted_on))
        if asked > cohort.MOST:
            raise FederationError(
                f"federation.secret adds up at most {cohort.MOST} sites, and {asked} are needed: lower "
                "federation.participation"
            )
        sites = [site for site in sites if site.name not in self._out]
        now = self._now = _Sum(place, asked, most, sites, {})
        now.keys = self._keys_of(number, sites)
        now.sites = [site for site in sites if site.name in now.keys]
        self._require(now.names, "giving keys")
        roll = {
            cohort.NAMES: now.names,
            cohort.SEAL_KEYS: [now.keys[name].seal for name in now.names],
            cohort.MASK_KEYS: [now.keys[name].mask for name in now.names],
            cohort.ASKED: asked,
            cohort.THRESHOLD: most,
        }
        for site, answer in self._ask(cohort.SHARES, now.sites, roll, len(now.sites) - 1):
            others = [name for name in now.names if name != site.name]
            now.sealed[site.name] = dict(zip(others, answer[cohort.SEALED], strict=True))
            now.commitments[site.name] = answer[cohort.COMMITMENT]
        self._require(now.sealed, "sharing")
        return [site for site in now.sites if site.name in now.sealed]

    def _keys_of(self, number: int, sites: Sequence[Site]) -> dict[str, _Keys]:
        """Return the sites' keys for a round, no two of which are alike.

        A site whose keys are also another's is asked once for new ones, and is left out if those are shared too:
        which of them had a key first cannot be known.
        """

        def known() -> dict[str, _Keys]:
            there = {s.name: self._keys[s.name] for s in sites if s.name in self._keys}
            return {name: keys for name, keys in there.items() if keys.round == number}

        def ask(some: Sequence[Site], fields: Mapping[str, Any]) -> dict[str, _Keys]:
            for site, answer in self._ask(cohort.KEYS, some, fields):
                self._keys[site.name] = _keys(number, answer)
            return known()

        keys = known()
        keys = ask([site for site in sites if site.name not in keys], {})
        if twice := _alike(keys):
            named = [self._keys.pop(name).mask for name in twice]
            keys = ask([site for site in sites if site.name in twice], {cohort.RENEW: named})
        for name in _alike(keys) & twice:
            del self._keys[name], keys[name]
            self._leave_out(name, "its keys are another site's too, or each other's, twice running")
        return keys

    def _require_shares(self) -> None:
        """Refuse noise in shares of another number of sites than each site counts on: FederationError."""
        config, counted_on = self._strategy.run.config, self._strategy.members.counted_on
        if config.private and config.federation.sites != counted_on:
            raise FederationError(
                f"each site adds a share of the noise of federation.sites={counted_on}, and "
                f"{config.federation.sites} nodes are there: set federation.sites to that, or start as many"
            )

    def compose(self, current: OpenRound) -> list[Message]:
        """Make a round's instructions request masked vectors and carry the shares that the others sealed."""
        now = self._sum
        expects = current.sent[0][2].expects  # every site's is the same where a method adds up
        now.form = form_of(self._strategy.run.config, expects, now.asked)
        for i, (message, site, instruction) in enumerate(current.sent):
            senders = [name for name in now.sealed if name != site.name]
            fields: dict[str, Any] = {
                cohort.ATTEMPT: now.place.attempt,
                cohort.ASKED: now.asked,
                cohort.NAMES: senders,
                cohort.SEALED: [now.sealed[name][site.name] for name in senders],
            }
            message.content[RECORD] = unchecked_record(ConfigRecord(), fields)
            expects = now.form.masked_spec(len(senders))
            current.sent[i] = message, site, replace(instruction, expects=expects)
        return current.messages

    # ---- the sum ----------------------------------------------------------------------------------

    def total(self, current: OpenRound, replies: Iterable[Message]) -> Upload:
        """Return one upload: the mean of all sites whose masked vectors came, once it is opened.

        Raises
        ------
        SumFailedError
            If they are too few, or cannot have added up to this. Nothing is learned then.
        """
        now, members = self._sum, self._strategy.members
        form = now.form
        assert form is not None
        with TemporaryFile() as kept:  # all vectors: in memory there is room for two
            words, came = self._vectors(current, replies, kept)
            there = [site for site, _ in came if site.name not in self._out]
            for at, (site, _) in enumerate(came):
                if site.name in self._out:
                    kept.seek(at * words.nbytes)
                    words -= np.fromfile(kept, form.dtype, len(words))
        names = [site.name for site in there]
        self._require(names, "sending their vectors")
        self._open(there, words)
        config = self._strategy.run.config
        public = by_counts(config) and config.tells_counts
        weight = sum(site.examples for site in there) * public
        try:
            total = form.total(words, len(there), current.weights, weight)
        except PayloadError as error:
            raise self._failure(str(error)) from None
        for site, upload in came:
            if site.name in names:
                members.outcome.accepted[site.name] = upload.metrics
                members.outcome.floats[site.name] = form.numbers
        summary = {**self.summary, "sites": len(there)}
        if total.shortened:
            logger.warning(
                "round %d: %d of %d updates were longer than federation.secret_clip=%g, and were cut to it",
                *(current.number, total.shortened, len(there), form.clip),
            )
            summary["shortened"] = total.shortened
        members.outcome.secret = {RECORD: summary}
        self._now = None
        all_sites = Site(ALL_SITES, 0, len(there))
        return Upload(all_sites, total.payload, weight or len(there), {}, tuple(names))

    @property
    def summary(self) -> dict[str, Any]:
        """What the round's line reports of its sum, also if it fails."""
        now = self._sum
        return {"asked": now.asked, "threshold": now.threshold, **self._epsilons(now.form)}

    def _vectors(
        self, current: OpenRound, replies: Iterable[Message], kept: IO[bytes]
    ) -> tuple[NDArray[Any], list[tuple[Site, Upload]]]:
        """Return the sum of all vectors that come, who sent them in which order, and keep each; find who lies."""
        now, members = self._sum, self._strategy.members
        assert now.form is not None
        words, came = np.zeros(now.form.numbers, now.form.dtype), list[tuple[Site, Upload]]()
        accused: dict[str, set[str]] = {}
        for reply, site, instruction in matched(replies, current.sent):
            try:
                require_names(reply, self._strategy.records)
                members.spending.take_from(reply, site.name, self._strategy.run.config.noises)
                upload = read_upload(reply, site, instruction.expects)
            except PayloadError as error:
                members.check_memory(site, str(error))
                members.outcome.rejected[site.name] = str(error)
                logger.warning("round %d: rejected %s: %s", current.number, site.name, error)
                continue
            members.log_memory_loss(current.number, upload)
            sent, others = upload.payload_as(Tensors), [n for n in now.sealed if n != site.name]
            vector = sent[MASKED].numpy().view(now.form.dtype)
            words += vector
            vector.tofile(kept)
            accused[site.name] = {*compress(others, sent[ACCUSED])}
            came.append((site, replace(upload, payload=Tensors({}))))
        self._judge(accused)
        return words, came

    def _judge(self, accused: Mapping[str, set[str]]) -> None:
        """Leave out who seals rubbish or says so of too many; SumFailedError if the rest cannot open the total.

        Up to as many accusers as may lie do not count: an accuser and the site it accuses both stay, their masks
        with each other too. More accusers than that have an honest one among them. What an honest site says of those
        is true, so that it is not counted against it.
        """
        now, most = self._sum, self._liars
        for name in now.sealed:
            by = [site for site, others in accused.items() if name in others]
            if len(by) > most:
                self._leave_out(name, f"{listed(by)} cannot read the shares that it has sealed")
        for name, others in accused.items():
            if name not in self._out and len(left := sorted(others - {*self._out})) > most:
                self._leave_out(name, f"it says of {listed(left)} that their shares cannot be read")
        inside = [name for name in accused if name not in self._out]
        for name in now.sealed:
            blind = [site for site in inside if name in accused[site]]
            if len(inside) - len(blind) < now.threshold <= len(inside):
                raise self._failure(
                    f"{listed(blind)} cannot read {name}'s shares, and {now.threshold} are needed to open them"
                )

    def _epsilons(self, form: SumForm | None) -> dict[str, Any]:
        """Return a site's privacy cost of all totals so far, by the shares of noise that they contain.

        Against the server alone all of them count; against it with the colluders, who know their own, the others'.
        """
        config = self._strategy.run.config
        if not self.inside or form is None:
            return {}
        federation, shares = config.federation, shares_of(config.federation)
        hidden = {"server": 0, "colluders": colluders_of(federation, federation.asked)}
        events = {
            name: [
                event_of(config, form, (each - known) / shares, lengths=1) for each in self.inside
            ]
            for name, known in hidden.items()
        }
        delta = config.privacy.delta
        costs = {f"epsilon_{name}": epsilon(each, delta).value for name, each in events.items()}
        return {**costs, "unit": "site"}

    def _open(self, there: Sequence[Site], words: NDArray[Any]) -> None:
        """Remove the masks from the sum of the sites ``there``."""
        now, number = self._sum, self._sum.place.round
        names, senders = {site.name for site in there}, [*now.sealed]
        last = number >= self._strategy.run.config.rounds
        survivors = {cohort.NAMES: sorted(names), cohort.NEXT: "" if last else self._attempt}
        holders: dict[int, list[bytes]] = {}
        now.opened = True  # from then on the server has the total
        self.inside += [len(there)] * self._strategy.run.config.clips_updates
        for site, answer in self._ask(cohort.OPENING, there, survivors, len(senders)):
            holders[now.names.index(site.name) + 1] = answer[cohort.OPENED]
            self._keys.pop(site.name, None)
            if cohort.SEAL_KEY in answer:
                self._keys[site.name] = _keys(number + 1, answer)
        self._require(holders, "opening it")
        for i, name in enumerate(senders):
            shares = {at: each[i] for at, each in holders.items() if each[i]}
            secret = self._joined(name, shares, name in names)
            if name in names:
                add_mask(words, own_key(secret, now.place, name), minus=True)
                continue
            for other in names:  # each has a mask with one that is gone, which was not removed
                key = pair_key(secret, now.keys[other].mask, now.place, name, other)
                add_mask(words, key, minus=not pair_is_minus(other, name))

    def _joined(self, name: str, shares: Mapping[int, bytes], is_there: bool) -> bytes:
        """Return the seed of a site that is there, or the private key of one that is gone, from shares of it.

        Where they do not fit, one holder's after the other is left out: as long as the others are enough.
        """
        now = self._sum
        for left_out in (None, *shares):
            places = tuple(at for at in shares if at != left_out)[: now.threshold]
            if len(places) < now.threshold:
                break
            try:
                found = joined([shares[at] for at in places], weights_of(places))
            except ValueError:
                continue
            proof = commitment(found, now.place, name) if is_there else public_of(found)
            if proof == (now.commitments[name] if is_there else now.keys[name].mask):
                return found
        raise self._failure(
            f"the shares that came of {name}'s are not of what it said: a site sent something else"
        )

    # ---- one exchange -----------------------------------------------------------------------------

    def _ask(
        self, query: str, sites: Sequence[Site], fields: Mapping[str, Any], count: int | None = None
    ) -> Iterator[tuple[Site, dict[str, Any]]]:
        """Yield each of ``sites`` that answers a query, and its answer, whose lists are of ``count``; log the others.

        The keys of the next round may come with the opening of this.
        """
        now = self._sum
        about = {
            "record": now.place.record,
            "server-round": now.place.round,
            cohort.ATTEMPT: now.place.attempt,
        }
        asked = []
        for site in sites:
            content = RecordDict({"config": unchecked_record(ConfigRecord(), {**about, **fields})})
            number = str(now.place.round)
            asked.append(Message(content, site.node_id, f"query.{query}", group_id=number))
        for site, reply in zip(sites, self.exchanged(asked), strict=True):
            try:
                if reply.has_error():
                    raise PayloadError(rejection_reason(reply))
                require_names(reply, _RECORDS)
                record = reply.content.config_records[RECORD]
                found = messages.read(record, messages.ANSWERS[query], count)
                if query == cohort.OPENING and cohort.SEAL_KEY in record:
                    found |= messages.read(record, messages.ANSWERS[cohort.KEYS])
            except PayloadError as error:
                reason = f"{query.replace('_', ' ')}: {error}"
                if query != cohort.OPENING:  # by then it is in the total
                    self._strategy.outcome.rejected[site.name] = reason
                    logger.warning("round %d: without %s: %s", now.place.round, site.name, reason)
                else:
                    logger.warning(
                        "round %d: %s opens nothing: %s", now.place.round, site.name, reason
                    )
                continue
            yield site, found

    def exchanged(self, messages: Sequence[Message], most: Sequence[int] = ()) -> Iterator[Message]:
        """Send messages of the round's, whose replies have at most these bytes of arrays, and yield the replies."""
        assert self.grid is not None
        federation = self._strategy.run.config.federation
        return exchange(
            self.grid,
            messages,
            deadline=federation.round_deadline,
            max_bytes=most,
            wave=federation.wave,
            traffic=self._strategy.traffic,
            again=True,
        )

    @property
    def _sum(self) -> _Sum:
        assert self._now is not None
        return self._now

    def _require(self, sites: Iterable[Any], doing: str) -> None:
        """Raise FederationError where fewer than the threshold are left."""
        now, left = self._sum, len([*sites])
        if left < now.threshold:
            reasons = reasons_in_words(self._strategy.outcome.rejected)
            raise self._failure(
                f"{left} of {now.asked} sites are left {doing}, and {now.threshold} open it (federation.secret; "
                f"{reasons or 'too few were asked'})"
            )

    def _failure(self, why: str) -> SumFailedError:
        return SumFailedError(
            f"round {self._sum.place.round}'s secret sum fails, and nothing is learned: {why}"
        )


class SecretRound(OpenRound):
    """A round whose accepted uploads are one: the total, after as many attempts as it takes."""

    def __init__(self, secret: SecretSum, *about: Any) -> None:
        super().__init__(*about)
        self._secret = secret
        self.ask_all: Callable[[], None] = lambda: None

    def attempt(self) -> list[Message]:
        """Return the messages that ask for masked vectors, once enough sites have given keys and shares."""
        while True:
            self.sent.clear()
            try:
                self.ask_all()
                return self._secret.compose(self)
            except SumFailedError as error:
                self._secret.try_again(error)

    def accepted(self, replies: Iterable[Message]) -> Iterator[Upload]:
        """Yield the total, once it is opened."""
        while True:
            try:
                total = self._secret.total(self, replies)
                break
            except SumFailedError as error:
                self._secret.try_again(error)
                replies = self._secret.exchanged(self.attempt(), self.max_reply_bytes)
        yield total


class SecretStrategy(Strategy):
    """Overrides of a method's strategy whose sites' parts come as one secret sum."""

    def __init__(self, run: Run, record_id: str = "run") -> None:
        super().__init__(run, record_id)
        self._secret = SecretSum(self)
        self._failed: list[
            SumFailedError
        ] = []  # of the rounds until now, those that failed in a row

    def checkpoint(self) -> State:
        """Return the method's, and how many sites were in each total under noise."""
        inside = self._secret.inside
        return {**super().checkpoint(), **({_INSIDE: inside} if inside else {})}

    def restore(self, state: State) -> None:
        """Restore what ``checkpoint`` returned."""
        self._secret.inside = [*state.get(_INSIDE, ())]
        super().restore({name: kept for name, kept in state.items() if name != _INSIDE})

    def begin(self, server_round: int, weights: Weights) -> SecretRound:
        """Begin a round, of which nothing is known yet, and return it."""
        self._secret.new_round()
        current = SecretRound(self._secret, self, server_round, weights)
        self.members.outcome, self.members.round = Outcome(), current
        return current

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Compose the round's messages, which ask for masked vectors; none where no total can come of them."""
        self.ensure_roll_call(grid)
        self._secret.grid = grid
        weights = weights_from(self.run, arrays)
        current, sites = self.begin(server_round, weights), self.choose(server_round)

        def ask_all() -> None:
            plan = self.instructions(server_round, weights, sites)
            current.compose(plan, sites, config, arrays)

        current.ask_all, self._unbegun = ask_all, None
        try:
            return current.attempt()
        except SumFailedError as error:
            self._unbegun = error
            return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the method learn from the total; without one the model is unchanged.

        Under `ridge`, whose sites' sums are the same in each round, a failed one is the end.
        """
        try:
            if self._unbegun is not None:
                raise self._unbegun
            learned = super().aggregate_train(server_round, replies)
        except SumFailedError as error:
            if self.run.config.method == "ridge":
                raise
            self._failed.append(error)
            self.outcome.secret = {RECORD: {**self._secret.summary, "failed": str(error)}}
            logger.warning("%s: the model is unchanged", error)
            self.members.round = None
            return None, None
        self._failed.clear()
        return learned

    def require_going_on(self) -> None:
        """Raise what a second round in a row has failed with; under noise, the first."""
        if len(self._failed) > (not self.run.config.private):
            raise self._failed[-1]

    def instructions(
        self, server_round: int, weights: Weights, sites: Sequence[Site]
    ) -> Mapping[str, Instruction]:
        """Return the method's, for those who have given keys and shares."""
        there = self._secret.begin(server_round, sites)
        return super().instructions(server_round, weights, there)


@cache
def secret_strategy(cls: type[Strategy]) -> type[Strategy]:
    """Return a method's strategy of which the server learns its sites' sum alone."""
    return type(f"Secret{cls.__name__}", (SecretStrategy, cls), {})


def _alike(keys: Mapping[str, _Keys]) -> set[str]:
    """Return the sites with a key that is in use twice."""
    points = {name: (point_of(each.seal), point_of(each.mask)) for name, each in keys.items()}
    used = Counter(chain(*points.values()))
    return {name for name, pair in points.items() if max(used[each] for each in pair) > 1}


def _keys(number: int, answer: Mapping[str, Any]) -> _Keys:
    return _Keys(number, answer[cohort.SEAL_KEY], answer[cohort.MASK_KEY])
