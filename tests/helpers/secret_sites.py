"""Sites of a secret sum, and a server of one's own that tells them what it likes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import Context, Error, Message, RecordDict

from client_app.secret import SecretSite, Vault
from common.config.loading import load
from common.secret import cohort
from common.secret.crypto import (
    KeyContext,
    add_mask,
    joined,
    own_key,
    pair_is_minus,
    pair_key,
    weights_of,
)
from nectar.engines.local_grid import LocalGrid

RECORD, ATTEMPT = "a-record", "attempt-1"
SHARE = 33


KEYS, SHARES, TRAIN, OPENING = (
    "query.secret_keys",
    "query.secret_shares",
    "train",
    "query.secret_opening",
)
#: what no site writes where it keeps its secrets
ODD_VAULTS = (
    *(b"", b"{", b"[]", b"null", b"0", b'"x"', b"{}", b"\xff\xfe", b"[" * 100_000, b"[]" * 9),
    *(b'{"live": {}, "opened": {}}', b'{"live": null, "opened": [], "digest": ""}'),
)

EXCHANGES = (KEYS, SHARES, TRAIN, OPENING)


class DroppingGrid(LocalGrid):
    """A federation whose nodes are gone in some exchanges: ``drops`` are (kind, round) with the nodes' numbers."""

    def __init__(self, *args: Any, drops: dict[tuple[str, int], set[int]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._drops, self.seen = drops, list[tuple[str, int, int]]()

    def _call(self, message: Message) -> Message:
        about = message.metadata
        kind, node = about.message_type, self.get_node_ids().index(about.dst_node_id)
        if about.group_id.isdecimal():
            self.seen.append((kind, int(about.group_id), node))
            if node in self._drops.get((kind, int(about.group_id)), ()):
                return Message(Error(code=5, reason="away"), reply_to=message)
        return super()._call(message)


class Sites:
    """So many sites of one run, each with a file of its own below ``directory``."""

    def __init__(self, directory: Path, count: int, colluders: int = 1) -> None:
        settings = (
            f"federation.sites={count} federation.secret=on federation.secret_colluders={colluders}"
        )
        self.run: Any = SimpleNamespace(config=load({"method": "fedavg", "set": settings}))
        self.names = [f"site-{i}" for i in range(count)]
        self.directory = directory

    def path(self, name: str) -> Path:
        """Return where a site's secrets lie."""
        return self.directory / "secrets" / f"{name}.json"

    def at(self, name: str, number: int = 1, attempt: str = ATTEMPT, **fields: Any) -> SecretSite:
        """Return a site as a process of its own takes up an instruction."""
        context = Context(1, 1, {}, RecordDict(), {})
        config = {"record": RECORD, "server-round": number, cohort.ATTEMPT: attempt, **fields}
        vault = Vault(self.path(name), context, RECORD, forgets=False)
        return SecretSite(self.run, name, vault, config)

    # ---- a server that follows the protocol ----------------------------------------------------------

    def roll(
        self, number: int = 1, attempt: str = ATTEMPT, names: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Ask for keys, and return the roll."""
        there = [*(names or self.names)]
        keys = [self.at(name, number, attempt).keys() for name in there]
        return {
            cohort.NAMES: there,
            cohort.SEAL_KEYS: [each[cohort.SEAL_KEY] for each in keys],
            cohort.MASK_KEYS: [each[cohort.MASK_KEY] for each in keys],
            cohort.ASKED: len(self.names),
            cohort.THRESHOLD: cohort.threshold_of(self.run.config.federation, len(self.names)),
        }

    def sealed(
        self, roll: Mapping[str, Any], number: int = 1, attempt: str = ATTEMPT
    ) -> dict[str, dict[str, bytes]]:
        """Have all of a roll share: what each sender sealed, by holder."""
        found = {}
        for name in roll[cohort.NAMES]:
            shared = self.at(name, number, attempt, **roll).shares()[cohort.SEALED]
            others = [other for other in roll[cohort.NAMES] if other != name]
            found[name] = dict(zip(others, shared, strict=True))
        return found

    def masked(
        self,
        name: str,
        sealed: Mapping[str, Mapping[str, bytes]],
        vector: np.ndarray,
        number: int = 1,
        attempt: str = ATTEMPT,
    ) -> np.ndarray:
        """Return a site's masked vector."""
        words, senders = vector.copy(), [other for other in sealed if other != name]
        mine = [sealed[other][name] for other in senders]
        self.masks(name, words, senders, mine, number, attempt)
        return words

    def masks(
        self,
        name: str,
        words: np.ndarray,
        senders: Sequence[str],
        sealed: Sequence[bytes],
        number: int = 1,
        attempt: str = ATTEMPT,
        **fields: Any,
    ) -> None:
        """Have a site take the shares of ``senders`` and mask a vector in place."""
        came = {cohort.NAMES: [*senders], cohort.SEALED: [*sealed], cohort.ASKED: len(self.names)}
        work = self.at(name, number, attempt, **came | fields)
        work.receive()
        work.mask(words)

    def up_to_masked(
        self, number: int = 1, attempt: str = ATTEMPT
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Run a round of all sites up to the masked vectors: the roll, and what each sent of its own vector."""
        roll = self.roll(number, attempt)
        sealed = self.sealed(roll, number, attempt)
        vectors = {name: self.vector(name) for name in self.names}
        sent = {n: self.masked(n, sealed, v, number, attempt) for n, v in vectors.items()}
        return roll, sent

    def total(
        self, vectors: Mapping[str, np.ndarray], there: Sequence[str], number: int = 1
    ) -> np.ndarray:
        """Return the sum of who is ``there`` as the server opens it, of all sites' vectors."""
        roll = self.roll(number)
        sealed = self.sealed(roll, number)
        sent = {name: self.masked(name, sealed, vectors[name], number) for name in self.names}
        opened = {n: self.at(n, number, names=[*there]).opening()[cohort.OPENED] for n in there}
        weights = weights_of(tuple(self.names.index(n) + 1 for n in there))
        place, words = KeyContext(RECORD, number, ATTEMPT), sum(sent[n] for n in there)
        for i, name in enumerate(self.names):
            secret = joined([opened[holder][i] for holder in there], weights)
            if name in there:
                add_mask(words, own_key(secret, place, name), minus=True)
                continue
            for other in there:
                public = roll[cohort.MASK_KEYS][self.names.index(other)]
                key = pair_key(secret, public, place, name, other)
                add_mask(words, key, minus=not pair_is_minus(other, name))
        return words

    def vector(self, name: str) -> np.ndarray:
        """Return what a site adds."""
        return np.arange(6, dtype="<u8") + 100 * self.names.index(name)
