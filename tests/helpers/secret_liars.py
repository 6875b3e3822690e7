"""Sites that lie in a secret sum: each has an honest site's code, and sends something else where it likes.

    python tests/helpers/secret_liars.py 'equal keys' 0 fedavg.epochs=5

prints what one lie of the last of five sites does to ten rounds of FedAvg on digits with a seed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message

sys.path.append(str(Path(__file__).parents[2]))

from secret_sites import KEYS, OPENING, SHARES, TRAIN

from client_app.app import app as client_app
from common.config.loading import load
from common.errors import FederationError
from common.secret import cohort
from common.secret.cohort import RECORD
from common.wire.npy import array_of
from nectar.engines.local_grid import LocalGrid
from server_app.app import serve
from server_app.record import Record

Lie = Callable[["LyingGrid", str, Message, Message], None]
"""Changes a reply of one kind to a message in place."""


class LyingGrid(LocalGrid):
    """A federation in which ``lies`` by a node's number change what it replies; it has seen what others replied."""

    def __init__(self, *args: Any, lies: Mapping[int, Lie], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lies, self.seen = lies, dict[tuple[str, int], ConfigRecord]()
        self.asked = list[tuple[str, int]]()

    def _call(self, message: Message) -> Message:
        about = message.metadata
        kind, number = about.message_type, self.get_node_ids().index(about.dst_node_id)
        reply = super()._call(message)
        if kind not in (KEYS, SHARES, TRAIN, OPENING):
            return reply
        self.asked.append((kind, number))
        if number in self._lies and not reply.has_error():
            self._lies[number](self, kind, message, reply)
        if not reply.has_error() and RECORD in reply.content:
            self.seen[kind, number] = reply.content.config_records[RECORD]
        return reply


def told(reply: Message) -> ConfigRecord:
    """Return what a reply says of the sum."""
    return reply.content.config_records[RECORD]


# ---- keys -------------------------------------------------------------------------------------------


def equal_keys(_: LyingGrid, __: str, ___: Message, reply: Message) -> None:
    """Give one key for both purposes."""
    if cohort.SEAL_KEY in told_or_nothing(reply):
        told(reply)[cohort.MASK_KEY] = told(reply)[cohort.SEAL_KEY]


def told_or_nothing(reply: Message) -> Mapping[str, Any]:
    """Return what a reply says of the sum, if anything."""
    return told(reply) if RECORD in reply.content else {}


def keys_of_first(grid: LyingGrid, kind: str, _: Message, reply: Message) -> None:
    """Give the first site's keys, which has replied by now: the network lies too."""
    if cohort.SEAL_KEY in told_or_nothing(reply):
        for key in (cohort.SEAL_KEY, cohort.MASK_KEY):
            told(reply)[key] = grid.seen[kind, 0][key]


def old_keys_of_first(grid: LyingGrid, kind: str, _: Message, reply: Message) -> None:
    """Give the keys that the first site had given when it was asked first."""
    if cohort.SEAL_KEY in told_or_nothing(reply):
        first = grid.__dict__.setdefault("first", dict(grid.seen[kind, 0]))
        for key in (cohort.SEAL_KEY, cohort.MASK_KEY):
            told(reply)[key] = first[key]


def same_point(grid: LyingGrid, kind: str, _: Message, reply: Message) -> None:
    """Give the first site's keys in another text, of which X25519 makes the same point."""
    if cohort.SEAL_KEY in told_or_nothing(reply):
        for key in (cohort.SEAL_KEY, cohort.MASK_KEY):
            text = grid.seen[kind, 0][key]
            assert isinstance(text, bytes)
            told(reply)[key] = text[:-1] + bytes([text[-1] ^ 0x80])


# ---- shares -----------------------------------------------------------------------------------------


def rubbish(*holders: int) -> Lie:
    """Seal rubbish for these of the other sites, in the order of the roll; for all if none is named."""

    def lie(_: LyingGrid, kind: str, __: Message, reply: Message) -> None:
        if kind != SHARES:
            return
        sealed = list(told(reply)[cohort.SEALED])  # type: ignore[arg-type]
        for at in holders or range(len(sealed)):
            sealed[at] = os.urandom(82)
        told(reply)[cohort.SEALED] = sealed  # type: ignore[assignment]

    return lie


def forged_commitment(_: LyingGrid, kind: str, __: Message, reply: Message) -> None:
    """Commit to another seed than is shared."""
    if kind == SHARES:
        told(reply)[cohort.COMMITMENT] = os.urandom(32)


# ---- vectors ----------------------------------------------------------------------------------------


def on_vector(make: Callable[[np.ndarray], np.ndarray]) -> Lie:
    """Send another masked vector; what is added to one is added to the total."""

    def lie(_: LyingGrid, kind: str, __: Message, reply: Message) -> None:
        if kind == TRAIN:
            change_arrays(reply, lambda name, array: make(array) if name == "masked" else array)

    return lie


def accusing(*holders: int) -> Lie:
    """Say of these of the other senders, by their order, that their shares cannot be read."""

    def lie(_: LyingGrid, kind: str, __: Message, reply: Message) -> None:
        def accuse(name: str, array: np.ndarray) -> np.ndarray:
            if name == "accused":
                array = array.copy()
                array[[*holders] or slice(None)] = 1
            return array

        if kind == TRAIN:
            change_arrays(reply, accuse)

    return lie


def change_arrays(reply: Message, change: Callable[[str, np.ndarray], np.ndarray]) -> None:
    """Change the arrays of a part of a sum by their names: a payload's first array describes the others."""
    arrays = [array.numpy() for array in reply.content.array_records["arrays"].values()]
    names = ["", "masked", "accused"]
    changed = [change(name, array) for name, array in zip(names, arrays, strict=False)]
    reply.content["arrays"] = ArrayRecord({f"{i}": array_of(a) for i, a in enumerate(changed)})


def random_vector(vector: np.ndarray) -> np.ndarray:
    """Return numbers of all sizes."""
    return np.frombuffer(os.urandom(vector.nbytes), vector.dtype)


def weighing(more: int) -> Callable[[np.ndarray], np.ndarray]:
    """Claim so much more weight than the site has."""

    def change(vector: np.ndarray) -> np.ndarray:
        changed = vector.copy()
        changed[-2] += changed.dtype.type(more)
        return changed

    return change


def longer(share: float) -> Callable[[np.ndarray], np.ndarray]:
    """Add to every number of a vector of 32 bits this share of the most that it may be in a total of five sites."""

    def change(vector: np.ndarray) -> np.ndarray:
        changed = vector.copy()
        changed[:-2] += changed.dtype.type(share * 5 * 2**28)
        return changed

    return change


# ---- what each lie does -----------------------------------------------------------------------------

LIES: Mapping[str, Lie] = {
    "equal keys": equal_keys,
    "another's keys": old_keys_of_first,
    "another's keys, seen on their way": keys_of_first,
    "rubbish sealed for all": rubbish(),
    "rubbish sealed for one": rubbish(0),
    "accuses all": accusing(),
    "forged commitment": forged_commitment,
    "random vector": on_vector(random_vector),
    "weight -10^6": on_vector(weighing(-(10**6))),
    "weight +10^6": on_vector(weighing(10**6)),
    "length 320": on_vector(longer(0.3)),
}
"""What one site lies about, in every round."""

NUMBERS = ((3, 1), (4, 1), (5, 0), (5, 1), (7, 0), (7, 2), (10, 0), (10, 3))
"""Sites, of which so many may collude."""

ALL, WITHOUT_IT, WITHOUT_TWO, FAILS = "–", "out", "two out", "fails"
"""Who is missing in the totals; or none is opened."""


def outcome_of(config: dict[str, Any], sites: int, lie: Lie | None) -> tuple[str, Record]:
    """Run with one liar, the last site: why the run stopped, nothing where it did not, and its record."""
    lies = {} if lie is None else {sites - 1: lie}
    try:
        return "", serve(LyingGrid(client_app, sites, config, lies=lies), load(config))
    except FederationError as error:
        (found,) = Path(config["output-dir"]).glob("2*")
        return str(error), Record(found)


def effect(config: dict[str, Any], sites: int, colluders: int, lie: Lie) -> str:
    """Return what a liar does to all of a run's rounds."""
    words = f"federation.sites={sites} federation.secret=on federation.secret_colluders={colluders}"
    stopped, record = outcome_of({**config, "set": f"{config['set']} {words}"}, sites, lie)
    lines = record.metrics()[1:]
    if stopped:
        assert "secret sum fails" in stopped
        return FAILS
    (inside,) = {line["notes"]["secret"]["sites"] for line in lines}
    out = {frozenset(line["rejected"]) for line in lines}
    liar = f"partition-{sites - 1}"
    assert out <= {frozenset()} or all(liar in each for each in out), "an honest site alone is out"
    return (ALL, WITHOUT_IT, WITHOUT_TWO)[sites - inside]


def measured(lie: str, seed: int, words: str, rounds: int = 10, sites: int = 5) -> str:
    """Return a line of a table of FedAvg on digits: accuracy, rounds, who is in them, who is named."""
    with tempfile.TemporaryDirectory() as folder:
        config = {
            "method": "fedavg",
            "rounds": rounds,
            "seed": seed,
            "output-dir": folder,
            "set": f"federation.sites={sites} federation.secret=on {words}",
        }
        why, record = outcome_of(config, sites, LIES.get(lie))
        lines = record.metrics()
        judged = [line["test"]["accuracy"] for line in lines if line["test"]]
        failed = [line["round"] for line in lines[1:] if not line.get("updated", True)]
        named = sorted({site for line in lines[1:] for site in line["rejected"]})
        inside = sorted({line["notes"]["secret"].get("sites", 0) for line in lines[1:]})
        cells = [lie, seed, f"{judged[-1]:.3f}", len(lines) - 1, failed, inside, named, why[:120]]
        return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    print(measured(sys.argv[1], int(sys.argv[2]), " ".join(sys.argv[3:])), flush=True)
