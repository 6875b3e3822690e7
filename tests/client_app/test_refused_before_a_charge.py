"""What can be known without an example is refused before it is charged: every refusal of every phase of a mechanism.

An honest run at sites of their own gives a site's instructions, each with what lay in its state directory then. Each is
spoiled in one thing after the other: a field, a record, an array, what the site remembers, what it may write. The site
then works, and is charged, or refuses, and is not: whatever the spoiled thing is, it was there before any example.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from charged import AT_ONCE, CHARGED, GENERATOR, ONE
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from secret_sites import ODD_VAULTS
from small import Small
from torch import Tensor

from client_app.app import app as client_app
from common.config.loading import load
from common.privacy.ledger import LEDGER, Ledger
from common.samples.inputs import Samples
from nectar.engines.local_grid import LocalGrid
from server_app.app import serve

pytestmark = pytest.mark.promise(
    "Records",
    "Of no mechanism is an instruction charged that can be refused without an example",
)

VAULT = "secret-sum"

#: rounds until each phase of a method has been asked for
ROUNDS = {"fedvae": 2, "feddpms": 3, "fedgen": 2, "fedmd": 2, "moon": 2, "scaffold": 2}

#: images of `fedmd` that every site gets
PUBLIC = 10

#: of the same mechanism as another
_LIKE = ("head", "augmented", "half", "proximal")

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
        for path in (state / VAULT).glob("*.json"):
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


@pytest.fixture
def read_when(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note in which order the site's own examples, which are bytes, are read and the ledger is charged."""
    order: list[str] = []
    read, charge = Samples.inputs, Ledger.append

    def inputs(self: Samples, idx: Tensor | slice) -> Tensor:
        if self.raw.dtype == torch.uint8 and len(self) > PUBLIC:
            order.append("read")
        return read(self, idx)

    def append(self: Ledger, *given: Any) -> Any:
        order.append("charged")
        return charge(self, *given)

    monkeypatch.setattr(Samples, "inputs", inputs)
    monkeypatch.setattr(Ledger, "append", append)
    return order


def honest(small: Small, directory: Path, name: str) -> tuple[Noting, dict[str, Any], int]:
    method, words, sites = MECHANISMS[name]
    own = CHARGED.get(name, GENERATOR)
    length = f" {own[2]}=1" if sites == 1 and name not in AT_ONCE else ""
    before, after = _around(sites)
    config = small(
        method=method,
        rounds=ROUNDS.get(method, 1),
        set=f"{before}{words}{length}{after if method == 'feddpms' else ''}",
    )
    grid = Noting(config, sites, directory)
    serve(grid, load(config))
    return grid, config, sites


def _around(sites: int) -> tuple[str, str]:
    return (f"{ONE} " if sites == 1 else "", " feddpms.smallest=1 feddpms.copies=4")


@pytest.mark.parametrize("name", [name for name in MECHANISMS if name not in _LIKE])
def test_what_is_refused_of_an_instruction_is_not_charged(
    small: Small, tmp_path: Path, name: str, read_when: list[str]
) -> None:
    grid, config, sites = honest(small, tmp_path, name)
    site, refused, wrong = Attacked(grid, config, sites), 0, list[str]()
    charged_in = set[int]()
    for number, asked in enumerate(grid.asked):
        read_when.clear()
        reason, charged = site.answers(asked, asked.content)
        assert not reason
        if not charged:
            continue  # a phase that releases nothing by a mechanism
        charged_in.add(number)
        assert name == "drawn" or read_when[0] == "charged", "an example was read first"
        tries = [(what, content, None) for what, content in spoiled(asked.content)]
        tries += [(what, asked.content, spoil) for what, spoil in STATES.items()]
        for what, content, spoil in tries:
            reason, charged = site.answers(asked, content, spoil)
            refused += bool(reason)
            if reason and charged:
                wrong.append(f"instruction {number}, {what}: charged, and then: {reason}")
            if not reason and not charged:
                wrong.append(f"instruction {number}, {what}: worked, and was not charged")
    assert not wrong, "\n".join(wrong)
    assert charged_in
    assert refused > 60
