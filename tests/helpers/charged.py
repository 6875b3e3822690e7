"""Every kind of charge that a site's ledger gets: a method, its settings, and the one that makes it long.

An honest run of one at sites of their own gives a site's instructions, each with what lay in its state directory then,
and ``spoiled`` everything that can be wrong with one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from secret_sites import ODD_VAULTS

from client_app.app import app as client_app
from common.config.loading import load
from common.privacy.ledger import LEDGER, Ledger
from nectar.engines.local_grid import LocalGrid
from server_app.app import serve
from server_app.record import Record

ONE = "federation.sites=1 data.images=200 evaluation.on=none"
SGD = "privacy.noise_multiplier=1 privacy.noise=system privacy.examples=200"
PUBLIC = "privacy.noise_multiplier=1 privacy.noise=system privacy.counts=public"
VAE = "model.name=vae model.depth=1 model.embedding=6 fedvae.preliminary_rounds=1"
FEDDM = f"{PUBLIC} feddm.start=noise feddm.mechanism="
DIFFUSION = (
    "fedssyn.width=2 fedssyn.multipliers=1 fedssyn.blocks=1 fedssyn.attention= fedssyn.batch=32 "
    "fedssyn.diffusion_steps=8 fedssyn.sampling_steps=2 fedssyn.sampler=second-order fedssyn.size=12"
)

#: every kind of charge: method, settings, and the one that makes it longer than any round
CHARGED = {
    "fedavg": ("fedavg", SGD, "fedavg.epochs"),
    "head": ("fedavg", f"{SGD} model.norm=batch model.train=head", "fedavg.epochs"),
    "augmented": ("fedavg", f"{SGD} fedavg.augment=flip_crop", "fedavg.epochs"),
    "scaffold": ("scaffold", SGD, "scaffold.epochs"),
    "moon": ("moon", SGD, "moon.epochs"),
    "fedgen": ("fedgen", PUBLIC, "fedgen.epochs"),
    "fedvae": ("fedvae", f"{VAE} {SGD}", "fedvae.epochs"),
    "feddpms": ("feddpms", f"{VAE} {PUBLIC}", "feddpms.epochs"),
    "feature": ("feddm", f"{FEDDM}feature", "feddm.iterations"),
    "gradient": ("feddm", f"{FEDDM}gradient", "feddm.iterations"),
    "half": ("feddm", f"{FEDDM}feature feddm.side=half", "feddm.iterations"),
    "counts": (
        "feddm",
        f"{FEDDM}feature privacy.counts=one feddm.counts_noise=10",
        "feddm.iterations",
    ),
    "loss": (
        "fedsynth",
        f"{PUBLIC} fedsynth.rate=2 fedsynth.objective=loss fedsynth.fidelity=off",
        "fedsynth.iterations",
    ),
    "update": (
        "fedsynth",
        f"{PUBLIC} fedsynth.rate=2 fedsynth.objective=update fedsynth.epochs=1",
        "fedsynth.iterations",
    ),
    "inner": ("fedssyn", f"{SGD} fedssyn.source=none fedssyn.inner=fedavg", "fedavg.epochs"),
}
GENERATOR = ("fedssyn", f"{DIFFUSION} fedssyn.noise_multiplier=1 {PUBLIC}", "fedssyn.epochs")

SUMS = "federation.sites=4 data.images=200 evaluation.on=none privacy.noise=system privacy.noise_multiplier=2"
SECRET = f"{SUMS} federation.secret=on federation.secret_colluders=1"

#: those of which no setting makes one long: sums, logits, and what several sites add up; with how many sites
AT_ONCE = {
    "logits": (
        "fedmd",
        f"{ONE} {PUBLIC} fedmd.mechanism=logits distil.count=10 distil.images=noise",
        1,
    ),
    "sums": ("ridge", f"{ONE} {PUBLIC} ridge.width=9", 1),
    "secret sums": ("ridge", f"{SECRET} ridge.width=9", 4),
    "updates": ("fedavg", f"{SECRET} federation.secret_clip=1 privacy.examples=50", 4),
    "proximal": ("fedprox", f"{SECRET} federation.secret_clip=1 privacy.examples=50", 4),
}

# ---- honest runs, and instructions that are spoiled ----------------------------------------------------

#: rounds until each phase of a method has been asked for
ROUNDS = {"fedvae": 2, "feddpms": 3, "fedgen": 2, "fedmd": 2, "moon": 2, "scaffold": 2}

MECHANISMS = {
    **{name: (*words[:2], 1) for name, words in CHARGED.items()},
    "drawn": (*GENERATOR[:2], 1),
    **AT_ONCE,
}

NUMBERS: list[Any] = [0, -1, 10**6, 0.5, float("nan"), True]
TEXTS: list[Any] = ["", "x", "../../up", "y" * 5000, b"", b"\xff" * 32]
LISTS: list[Any] = [[], [1, 2], ["x"], ["site-1"], [b"x"], [b"\1" * 82] * 3]


def odd_for(key: str, value: Any) -> list[Any]:
    """Return every odd value of a field's own kind, and one or two of each other kind."""
    if isinstance(value, list):
        return [*LISTS, *NUMBERS[:2], *TEXTS[:2]]
    if isinstance(value, str | bytes):
        return [*TEXTS, *NUMBERS[:2], *LISTS[:2]]
    # whether half a second is enough, only the work itself can say
    numbers = [n for n in NUMBERS if (key, n) != ("seconds-left", 0.5)]
    return [*numbers, *TEXTS[:2], *LISTS[:2]]


@dataclass(frozen=True)
class Asked:
    """An instruction that a site got, and what lay in its state directory by then."""

    content: RecordDict
    state: Path


class Noting(LocalGrid):
    """Sites of their own, of which the first one's instructions are kept."""

    def __init__(self, config: dict[str, Any], sites: int, directory: Path) -> None:
        self.directory, self.asked = directory, list[Asked]()
        super().__init__(client_app, [self.node(i, sites) for i in range(sites)], config)

    def node(self, number: int, sites: int) -> dict[str, Any]:
        place = {"partition-id": number, "num-partitions": sites}
        state = str(self.directory / f"state-{number}")
        return {"simulated": False, "site": f"site-{number}", "state-dir": state, **place}

    def _work(self, message: Message, node_id: int) -> Message:
        about = message.metadata
        if about.message_type == "train" and about.dst_node_id == self.get_node_ids()[0]:
            kept = self.directory / f"kept-{len(self.asked)}"
            shutil.copytree(self.directory / "state-0", kept, dirs_exist_ok=True)
            self.asked.append(Asked(message.content, kept))
        return super()._work(message, node_id)


def fields_spoiled(content: RecordDict, name: str) -> Iterator[tuple[str, RecordDict]]:
    """Yield the instruction without a field of a record, and with each odd value in its place."""
    record = content.config_records[name]
    for key in record:
        others = {k: v for k, v in record.items() if k != key}
        yield f"{name} without {key}", RecordDict({**content, name: ConfigRecord(others)})
        for value in odd_for(key, record[key]):
            with_odd = ConfigRecord({**record, key: value})
            yield f"{name} {key}={str(value)[:20]!r}", RecordDict({**content, name: with_odd})
        if isinstance(value := record[key], list) and len(value) > 1:
            for what, changed in (("fewer", value[1:]), ("reversed", [*reversed(value)])):
                with_changed = ConfigRecord({**record, key: changed})
                yield f"{name} {key} {what}", RecordDict({**content, name: with_changed})


def arrays_spoiled(content: RecordDict) -> Iterator[tuple[str, RecordDict]]:
    """Yield the instruction with its arrays damaged."""
    arrays = content.array_records["arrays"].to_numpy_ndarrays()
    damaged: dict[str, list[Any]] = {
        "no array": [],
        "one fewer": arrays[:-1],
        "one twice": [*arrays, arrays[-1]],
        "the first ones": arrays[:3],
        "other shapes": [a.ravel()[:-1] for a in arrays],
        "zeros": [np.zeros_like(a) for a in arrays],
        "doubles": [a.astype(np.float64) for a in arrays],
        "texts": [np.array(["x"] * max(1, a.size)) for a in arrays],
    }
    for number in (np.nan, np.inf):  # what comes of 1e30, only the examples say
        damaged[str(number)] = [
            np.full_like(a, number) if a.dtype.kind == "f" else a for a in arrays
        ]
    for what, changed in damaged.items():
        yield f"arrays: {what}", RecordDict({**content, "arrays": ArrayRecord(changed)})


def spoiled(content: RecordDict) -> Iterator[tuple[str, RecordDict]]:
    """Yield everything that is wrong with an instruction, one thing at a time."""
    for name in content:
        yield f"without {name}", RecordDict({k: v for k, v in content.items() if k != name})
        if isinstance(content[name], ConfigRecord):
            yield from fields_spoiled(content, name)
    for value in (1e-9, 0.0):
        config = ConfigRecord({**content.config_records["config"], "seconds-left": value})
        yield f"{value} s left", RecordDict({**content, "config": config})
    yield from arrays_spoiled(content)


def unwritable_log(state: Path) -> None:
    (state / "released.jsonl").unlink(missing_ok=True)
    (state / "released.jsonl").mkdir()


def remembered_unreadable(state: Path) -> None:
    for path in state.rglob("0*.safetensors"):
        path.write_bytes(b"x")


def remembered_of_others(state: Path) -> None:
    for path in state.rglob("0*.safetensors"):
        path.rename(path.with_name("000077.safetensors"))


def in_vault(text: bytes | None) -> Any:
    def spoil(state: Path) -> None:
        for path in (state / "secret-sum").glob("*.json"):
            path.unlink() if text is None else path.write_bytes(text)

    return spoil


STATES = {
    "log": unwritable_log,
    "unreadable memory": remembered_unreadable,
    "other memory": remembered_of_others,
    "no vault": in_vault(None),
    **{f"vault {text[:9]!r}": in_vault(text) for text in ODD_VAULTS},
}


class Attacked:
    """A site that is asked again and again from the same state."""

    def __init__(self, grid: Noting, config: dict[str, Any], sites: int) -> None:
        self._state = grid.directory / "state-0"
        self._grid = LocalGrid(client_app, [grid.node(0, sites)], config)

    def answers(self, asked: Asked, content: RecordDict, spoil: Any = None) -> tuple[str, int]:
        """Return what the site refuses with, nothing where it works, and how often it was charged."""
        shutil.rmtree(self._state)
        shutil.copytree(asked.state, self._state)
        if spoil is not None:
            spoil(self._state)
        message = Message(content, self._grid.get_node_ids()[0], "train", group_id="1")
        (reply,) = self._grid.send_and_receive([message])
        charged = self._charges(self._state) - self._charges(asked.state)
        return (str(reply.error.reason) if reply.has_error() else ""), charged

    @staticmethod
    def _charges(state: Path) -> int:
        return Ledger(state).read().head.length if (state / LEDGER).exists() else 0


def honest(small: Any, directory: Path, name: str) -> tuple[Noting, dict[str, Any], Record]:
    """Carry a mechanism out at as many sites as it needs."""
    method, words, sites = MECHANISMS[name]
    length = (CHARGED | {"drawn": GENERATOR}).get(name, ("", "", ""))[2]
    text = f"{ONE} {words}" if sites == 1 else words
    text += f" {length}=1" if length else ""
    text += " feddpms.smallest=1 feddpms.copies=4" if method == "feddpms" else ""
    config = small(method=method, rounds=ROUNDS.get(method, 1), set=text)
    grid = Noting(config, sites, directory)
    return grid, config, serve(grid, load(config))
