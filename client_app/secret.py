"""A site's phase of a secret sum: its keys, the shares that it deals and holds, its masked vector, the opening.

Each exchange is a separate process, so that the secrets of the round are in the node's state directory between them,
or in its Context where it has none. There is one round's at a time, and the opening, or another attempt, deletes it.
What stays is of which rounds this site has opened a total, and of whom: of the same round it opens no other one, since
the difference of two totals of the same vectors can be one site's own.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from torch import Tensor

from client_app.device import DeviceClient, NDArrays
from client_app.draws import SiteRound
from client_app.site import (
    config_of,
    division_of,
    is_simulated,
    record_directory,
    site_of,
    state_directory,
    state_of,
)
from client_app.state import payload_line
from common.errors import FederationError, PayloadError
from common.learning.run import Run
from common.secret import cohort, messages
from common.secret.cohort import RECORD, digest_of, shares_of, threshold_of
from common.secret.crypto import (
    SHARE_BYTES,
    KeyContext,
    Words,
    add_mask,
    commitment,
    new_secret,
    own_key,
    pair_is_minus,
    pair_key,
    point_of,
    public_of,
    seal,
    split,
    unseal,
)
from common.secret.summand import by_counts, event_of, form_of, spec_of
from common.sites import site_slug
from common.specs.updates import model_in
from common.storage.files import open_regular, read_regular, write_atomically
from common.wire.form import Payload, Spec
from common.wire.tensors import Tensors, TensorsSpec
from common.wire.weights import Weights

_FOLDER = "secret-sum"
"""The folder of the secrets between exchanges, in the state directory; in a simulation's, its name has a dot first."""

_DAY = 24 * 3600.0

_DIGEST = "digest"
"""The key of a digest of what else is kept: so that no other content is taken for it, even of a damaged file."""

State = dict[str, Any]
"""What a site keeps: ``live`` of the round that is under way, ``opened`` by round of whom a total was opened."""


class Vault:
    """One site's secrets in one run, between exchanges.

    Parameters
    ----------
    path : Path or None
        The file, which its owner alone can read; None for the node's Context.
    forgets : bool
        Whether nothing at all stays once no round is under way, as for a simulated node, whose secrets protect no one.
    """

    def __init__(self, path: Path | None, context: Context, record: str, *, forgets: bool) -> None:
        self._path, self._context, self._key = path, context, f"{_FOLDER} {record}"
        self._forgets = forgets

    @classmethod
    def of(cls, run: Run, record: str, site: str, context: Context) -> Vault:
        """Return a node's; a simulated node's file is next to the runs' records, never in one."""
        directory = state_directory(context)
        root = None if directory is None else directory / _FOLDER
        if root is None and is_simulated(context):
            root = record_directory(run, record).parent / f".{_FOLDER}"
        path = None if root is None else root / f"{record}~{site_slug(site)}.json"
        return cls(path, context, record, forgets=directory is None)

    def read(self) -> State:
        """Return what is kept, nothing of a new run; FederationError for a file that Nectar did not write."""
        text: Any = None
        try:
            if self._path is not None:
                text = read_regular(self._path)
            elif isinstance(kept := self._context.state.get(self._key), ConfigRecord):
                text = kept["kept"]
            state: State = {"live": None, "opened": {}} if text is None else json.loads(text)
            if text is not None and state.pop(_DIGEST) != _digest(state):
                raise ValueError
        except FileNotFoundError:
            return {"live": None, "opened": {}}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise FederationError(
                f"what this site keeps of a secret sum cannot be read: delete {_FOLDER} in its state-dir"
            ) from None
        return state

    def write(self, state: State) -> None:
        """Keep ``state``, on disk before anything that rests on it leaves; FederationError if that cannot be."""
        text = json.dumps({**state, _DIGEST: _digest(state)})
        if self._path is None:
            self._context.state[self._key] = ConfigRecord({"kept": text})
            return
        if self._forgets and state["live"] is None:
            self._path.unlink(missing_ok=True)
            with suppress(OSError):  # other sites' files are there
                self._path.parent.rmdir()
            return

        def write(to: Path) -> None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            with os.fdopen(open_regular(to, flags), "w", encoding="utf-8") as file:
                file.write(text)

        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(self._path, write)
        except OSError as error:
            raise FederationError(
                f"this site's state cannot be written ({error.strerror}): free some space there"
            ) from None

    def forget_ended(self) -> None:
        """Delete the secrets of runs that ended in the middle of a round, a day ago or more."""
        ended = time.time() - _DAY
        for path in () if self._path is None else self._path.parent.glob("*~*.json"):
            with suppress(OSError, FederationError):
                other = Vault(path, self._context, "", forgets=self._forgets)
                if path.stat().st_mtime < ended and (state := other.read())["live"]:
                    other.write({**state, "live": None})


class SecretSite:
    """One site's part in one round's sum, as an instruction names it.

    Raises
    ------
    FederationError
        If the run has no secret sum, or the instruction does not say of which round and attempt it is.
    """

    def __init__(self, run: Run, site: str, vault: Vault, config: Mapping[str, Any]) -> None:
        if not run.config.secret:
            raise FederationError(
                "this run has no secret sum (federation.secret): nothing is opened"
            )
        number, attempt = config.get("server-round"), config.get(cohort.ATTEMPT)
        if type(number) is not int or not isinstance(attempt, str) or not 1 <= len(attempt) <= 64:
            raise FederationError("the instruction does not say of which round's secret sum it is")
        self._run, self._site, self._vault, self._config = run, site, vault, config
        self._place = KeyContext(str(config.get("record", "")), number, attempt)

    @property
    def number(self) -> int:
        """The round."""
        return self._place.round

    # ---- the exchanges ----------------------------------------------------------------------------

    def keys(self) -> dict[str, Any]:
        """Return public keys for a round, the same each time; those of any other attempt are gone then.

        They are other ones where the server names these as no site's alone, and no other site knows them yet.
        """
        state = self._vault.read()
        live, twice = state["live"], self._config.get(cohort.RENEW, [])
        known = _is_of(live, self._place)
        if not known or ("roll" not in live and _public(live)[cohort.MASK_KEY] in twice):
            state["live"] = _new_live(self._place)
            self._vault.write(state)
            self._vault.forget_ended()
        return _public(state["live"])

    def shares(self) -> dict[str, Any]:
        """Return a commitment, and for each other site a share of both secrets, sealed; the same each time."""
        state = self._vault.read()
        live = self._live(state)
        roll = self._roll(live)
        if "roll" in live:
            if live["roll"] != roll:
                raise FederationError(
                    "this site was given another roll of this round: it shares once"
                )
        else:
            live |= {"roll": roll, **self._dealt(live, roll)}
            self._vault.write(state)
        return {
            cohort.COMMITMENT: bytes.fromhex(live["commitment"]),
            cohort.SEALED: [bytes.fromhex(each) for each in live["sealed"]],
        }

    def receive(self) -> int:
        """Take the shares that came with an instruction, and return how many sites take part.

        No example has been read by then. A share that cannot be read is noted and refuses nothing: else a site that
        seals rubbish for another, or a server in its name, would exclude that one.

        A sender whose share cannot be read is masked against as any other, and this site opens nothing of it. So a
        server that sends rubbish in the names of others, or has colluders accuse, takes no mask off a vector. All that
        it can have of an honest site are still the shares that the others hold of its secrets; of each of them it gets
        the one or the other, and of neither more than from a site that could read all. Fewer holders of a share only
        make the threshold harder to reach.
        """
        state = self._vault.read()
        live = self._live(state, "roll")
        roll = live["roll"]
        self._require_unmasked(live)
        senders, sealed, asked = self._read(messages.SHARES_FOR_SITE).values()
        if asked != roll[cohort.ASKED]:
            raise FederationError("the instruction is of another number of sites than the roll")
        if senders != [n for n in roll[cohort.NAMES] if n in senders and n != self._site]:
            raise FederationError("the shares that came are not of sites of this round's roll")
        self._require(len(senders) + 1, roll)
        live["received"] = {
            name: self._unsealed(live, name, each).hex()
            for name, each in zip(senders, sealed, strict=True)
        }
        self._vault.write(state)
        return int(asked)

    @property
    def accused(self) -> list[bool]:
        """Of each sender whether its share cannot be read, in the order of the instruction."""
        return [
            not share for share in self._live(self._vault.read(), "received")["received"].values()
        ]

    def mask(self, words: Words) -> None:
        """Mask a vector in place, once, for those whose shares came; it is noted before that it leaves."""
        state = self._vault.read()
        live = self._live(state, "received")
        self._require_unmasked(live)
        private = bytes.fromhex(live["mask"])
        live["masked"] = True
        for name in live["received"]:
            public = _key_of(live["roll"], cohort.MASK_KEYS, name)
            key = pair_key(private, public, self._place, self._site, name)
            add_mask(words, key, minus=pair_is_minus(self._site, name))
        add_mask(words, own_key(bytes.fromhex(live["seed"]), self._place, self._site))
        self._vault.write(state)

    def opening(self) -> dict[str, Any]:
        """Return this site's shares, of the own masks of who is there and the keys of who is gone, and delete the rest.

        With them come the keys of the next round, where the server names its attempt at one.
        """
        state = self._vault.read()
        live = self._live(state, "masked")
        (survivors,), roll = self._read(messages.SURVIVORS).values(), live["roll"]
        senders = [n for n in roll[cohort.NAMES] if n == self._site or n in live["received"]]
        if not {self._site} <= {*survivors} <= {*senders}:
            raise FederationError(
                "those whose total is to be opened are not all of this round's roll, or this site is not among them"
            )
        self._require(len(survivors), roll)
        self._require_same(state["opened"], survivors)
        live["received"][self._site] = live["own"]
        opened = []
        for name in senders:
            both = bytes.fromhex(live["received"][name])  # nothing of one that could not be read
            opened.append(both[:SHARE_BYTES] if name in survivors else both[SHARE_BYTES:])
        after = self._config.get(cohort.NEXT)
        state["live"] = None
        if isinstance(after, str) and after:
            place = KeyContext(self._place.record, self._place.round + 1, after)
            state["live"] = _new_live(place)
        self._vault.write(state)
        keys = {} if state["live"] is None else _public(state["live"])
        return {cohort.OPENED: opened, **keys}

    # ---- what they share --------------------------------------------------------------------------

    def _require_unmasked(self, live: State) -> None:
        if "masked" in live:
            raise FederationError(
                "this site has sent its vector of this round: it masks no second one"
            )

    def _live(self, state: State, stage: str = "") -> State:
        """Return the round's secrets, which have come to a ``stage``."""
        live: State | None = state["live"]
        if live is None or not _is_of(live, self._place) or (stage and stage not in live):
            raise FederationError(
                "this site has no secrets of this round of the sum (another attempt, opened already, or lost as it "
                "was started again): it takes part in the next"
            )
        return live

    def _roll(self, live: State) -> State:
        """Return the roll that came: names in order, with their keys; FederationError if it is not one of this run."""
        roll = self._read(messages.ROLL)
        names, seal_keys, mask_keys, asked, most = roll.values()
        if self._site not in names:
            raise FederationError("this site is not in the roll of this round")
        mine = names.index(self._site)
        if [seal_keys[mine], mask_keys[mine]] != [*_public(live).values()]:
            raise FederationError("the roll of this round has other keys of this site than it gave")
        if len({*map(point_of, seal_keys), *map(point_of, mask_keys)}) < 2 * len(names):
            raise FederationError("the roll of this round has a key twice")
        least = threshold_of(self._run.config.federation, asked)
        if not len(names) <= asked <= cohort.MOST or not least <= most <= asked:
            raise FederationError(
                f"a total of {most} of {asked} sites is to be opened, and this site takes part from {least} on"
            )
        self._require(len(names), roll)
        kept = {cohort.SEAL_KEYS: seal_keys, cohort.MASK_KEYS: mask_keys}
        return roll | {key: [each.hex() for each in keys] for key, keys in kept.items()}

    def _require(self, there: int, roll: State) -> None:
        if there < (least := roll[cohort.THRESHOLD]):
            raise FederationError(
                f"{there} sites are in this round's sum, and this site takes part from {least} on"
            )

    def _require_same(self, opened: dict[str, str], survivors: Sequence[str]) -> None:
        """Note of whom a total of this round is opened; FederationError if it was of others before."""
        if opened.setdefault(str(self._place.round), digest_of(survivors)) != digest_of(survivors):
            raise FederationError(
                "this site has opened a total of this round, of other sites, and the difference of the two would be "
                "some sites' own: go on from a later round, or begin a new run"
            )

    def _dealt(self, live: State, roll: State) -> State:
        """Return the seed of this site's own mask, and shares of it and of the mask key: sealed, except for its own."""
        names, seed = roll[cohort.NAMES], new_secret()
        secrets = (seed, bytes.fromhex(live["mask"]))
        each = [split(secret, roll[cohort.THRESHOLD], len(names)) for secret in secrets]
        own, sealed = "", []
        for name, public, *shares in zip(names, roll[cohort.SEAL_KEYS], *each, strict=True):
            if name == self._site:
                own = b"".join(shares).hex()
                continue
            keys = bytes.fromhex(live["seal"]), bytes.fromhex(public)
            sealed.append(seal(*keys, self._place, self._site, name, b"".join(shares)).hex())
        committed = commitment(seed, self._place, self._site).hex()
        return {"seed": seed.hex(), "own": own, "sealed": sealed, "commitment": committed}

    def _unsealed(self, live: State, name: str, sealed: bytes) -> bytes:
        """Return the two shares that came as a sender's; nothing where they are not its own, for this site."""
        private, public = bytes.fromhex(live["seal"]), _key_of(live["roll"], cohort.SEAL_KEYS, name)
        with suppress(ValueError):
            return unseal(private, public, self._place, name, self._site, sealed)
        return b""

    def _read(self, fields: messages.Fields) -> dict[str, Any]:
        """Return what the instruction says of the sum; FederationError for anything else."""
        try:
            return messages.read(self._config, fields)
        except PayloadError as error:
            raise FederationError(f"the instruction cannot be used: {error}") from None


def _digest(state: State) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _new_live(place: KeyContext) -> State:
    keys = {"seal": new_secret().hex(), "mask": new_secret().hex()}
    return {"round": place.round, "attempt": place.attempt, **keys}


def _is_of(live: State | None, place: KeyContext) -> bool:
    return live is not None and (live["round"], live["attempt"]) == (place.round, place.attempt)


def _public(live: State) -> dict[str, bytes]:
    keys = ((cohort.SEAL_KEY, "seal"), (cohort.MASK_KEY, "mask"))
    return {key: public_of(bytes.fromhex(live[kept])) for key, kept in keys}


def _key_of(roll: State, kind: str, name: str) -> bytes:
    """Return a site's public key in a roll."""
    return bytes.fromhex(roll[kind][roll[cohort.NAMES].index(name)])


# ---- at the ClientApp ----------------------------------------------------------------------------


def answer(message: Message, context: Context, exchange: str, record: str) -> RecordDict:
    """Answer a query of the phase, ``keys``, ``shares`` or ``opening``, in the run of a record's name."""
    run, config = division_of(context).run, config_of(message, "config")
    site = site_of(run, context)
    work = SecretSite(run, site, Vault.of(run, record, site, context), config)
    answer: dict[str, Any] = getattr(work, exchange)()
    if "state-dir" in context.node_config:
        line = payload_line(work.number, f"secret-{exchange}", "", [], [*answer])
        state_of(run, record, site, context).log_release(line)
    return RecordDict({RECORD: ConfigRecord(answer)})


class SecretClient(DeviceClient):
    """What a method's client does otherwise where its result leaves as the site's part of a secret sum.

    Nothing else that is computed from its examples leaves.

    Parameters
    ----------
    work : SecretSite
        This site's part in the round's sum.
    """

    def __init__(self, *about: Any, work: SecretSite, **named: Any) -> None:
        super().__init__(*about, **named)
        self._work, self._asked = work, 0
        self._base: Weights | None = None

    def _round_of(self, config: Mapping[str, Any]) -> SiteRound:
        return replace(super()._round_of(config), private=True)

    def phase_named(self, name: str) -> tuple[Callable[[Any], Payload], Callable[[Run], Spec]]:
        """Return what runs a phase, after what a sum needs of an instruction; FederationError if it does not exist."""
        work, takes = super().phase_named(name)
        return partial(self._run, work), takes

    def _run(self, work: Callable[[Any], Payload], given: Payload) -> Payload:
        """Refuse what is not part of a sum; then charge complete updates, by the certain number of shares of noise.

        No example has been read by then.
        """
        of_run, model = self.run.config, model_in(given)
        if not self._asked:
            self._asked = self._work.receive()
            form_of(
                of_run, self.run.spec if of_run.clips_updates else TensorsSpec({}), self._asked
            )  # refuses a sum without room for so many
        self._base = None if model is None else model.copy_on_write()
        if of_run.clips_updates:
            form = form_of(of_run, self.run.spec, of_run.federation.asked)
            self.draws.charge(event_of(of_run, form, 1.0, lengths=2))
        return work(given)

    def _noise(self, steps: Tensor) -> Tensor:
        """Return integer steps with this site's share of the noise."""
        config = self.run.config
        noise, clip = config.privacy.noise_multiplier, config.federation.secret_clip
        mechanism = self.draws.gaussian("updates", noise, clip)
        return mechanism.share(steps, shares_of(config.federation))

    def release(self, phase: str, payload: Payload | None, figures: Sequence[str]) -> NDArrays:
        """Let the site's part of the sum out, and nothing else; FederationError for any figures of the site's own."""
        if payload is None:
            raise FederationError(
                f"{phase}: no figure of one site leaves it under federation.secret"
            )
        part = self._part_of(payload)
        return super().release(phase, part, figures)

    def _part_of(self, made: Payload) -> Tensors:
        """Return what leaves instead of what the phase made."""
        config = self.run.config
        form = form_of(config, spec_of(self.run.spec, made), self._asked)
        weight = len(self.samples) if by_counts(config) else 1
        try:
            noise = self._noise if config.clips_updates else None
            words = form.summand(made, self._base, weight, noise)
        except PayloadError as error:
            raise FederationError(str(error)) from None
        self._work.mask(words)
        return form.payload(words, self._work.accused)


@cache
def _of_method(cls: type[DeviceClient]) -> type[DeviceClient]:
    return type(f"Secret{cls.__name__}", (SecretClient, cls), {})


def secret_client(
    cls: type[DeviceClient], message: Message, context: Context, run: Run, site: str, record: str
) -> Callable[..., DeviceClient]:
    """Return what makes a method's client for an instruction; FederationError if that says not what a sum needs."""
    named, vault = config_of(message, RECORD), Vault.of(run, record, site, context)
    work = SecretSite(run, site, vault, {**config_of(message, "config"), **named})
    client: Callable[..., DeviceClient] = _of_method(cls)
    return partial(client, work=work)
