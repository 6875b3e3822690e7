"""The contract of files: what was written is read again, and of what is damaged one sentence is said.

A reader is a row: what it keeps on disk, and how it is read. Damaged, a file of the reader's gives a NectarError in one
printable line or, where no checksum guards it, what its form allows; a store is made anew. A file that a kill or a full
disk left is the old one or the new one. What a damage means to a method or a command stands with these.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import run
from secret_sites import Sites
from small import SMALL

from client_app.state import DirectoryState
from common.data.store import Contents, shared_store
from common.data.user.arrays import read_npz
from common.data.user.rows import read_rows
from common.errors import NectarError
from common.privacy.events import Event
from common.privacy.ledger import Charge, Ledger
from common.samples.dataset import Split
from common.storage.tensor_file import FOLDER
from common.wire.images import SyntheticImages
from nectar.cli import main
from nectar.export.model import ExportedModel
from nectar.records.record import RunRecord
from nectar.records.synthetic_sets import load_sets
from server_app.checkpoint import Checkpoint
from server_app.pictures import save_sets

pytestmark = [
    pytest.mark.usefixtures("patience"),
    pytest.mark.promise(
        "Records", "A damaged record is refused by file, line and round, and stays as it is"
    ),
    pytest.mark.promise(
        "A site is the master of its own machine",
        "An edited, shortened or restored ledger lets nothing out. Ledger and server restored "
        "alike: not noticed",
    ),
]

#: large enough to be stored apart
LARGE = torch.arange(1_200_000).to(torch.uint8)


@dataclass(frozen=True)
class Reader:
    """What is kept in a folder: ``write(folder, number)`` its version 1 or 2, ``read(folder)`` what it says.

    Without ``write`` it is part of a run's record.

    ``files`` are the files by patterns. ``sealed`` ones differ from what was written in no bit unseen; a ``healed`` one
    is made anew. ``atomic`` says that a version takes another one's place as a whole.
    """

    write: Callable[[Path, int], object] | None
    read: Callable[[Path], Any]
    files: tuple[str, ...]
    sealed: bool = True
    healed: bool = False
    atomic: bool = True


def checkpoint(folder: Path, number: int) -> None:
    weights = {"w": torch.arange(5.0) * number}
    Checkpoint(number, weights, {"a": {"": torch.ones(2)}}).save(folder / "last.safetensors")


def read_checkpoint(folder: Path) -> Any:
    kept = Checkpoint.load(folder / "last.safetensors")
    return kept.server_round, kept.weights["w"].tolist()


def checkpoint_apart(folder: Path, number: int) -> None:
    for _ in range(2):  # the second names what the first held
        Checkpoint(number, {"w": torch.ones(1)}, {"pool": LARGE}).save(folder / "last.safetensors")


def read_apart(folder: Path) -> Any:
    return int(Checkpoint.load(folder / "last.safetensors").strategy["pool"].sum())


def memory(folder: Path, number: int) -> None:
    DirectoryState(folder, "record", "site").save(1, {"a": LARGE, "b": torch.ones(3) * number})


def read_memory(folder: Path) -> Any:
    return DirectoryState(folder, "record", "site").load(1)["b"].tolist()


def ledger(folder: Path, number: int) -> None:
    words = ("2026-01-01T00:00:00Z", "north", "a-run", number, "train", "fedavg", "/data")
    charge = Charge(*words, (Event("dp-sgd", 1.1, 0.05, 30),))
    for _ in range(3 - number):  # of one line a kill may have kept the head back
        Ledger(folder).append(charge, lambda before: None)


def read_ledger(folder: Path) -> Any:
    return [charge.round for charge in Ledger(folder).read().charges]


def sets(folder: Path, number: int) -> None:
    images = SyntheticImages(torch.full((2, 1, 4, 4), float(number)), torch.tensor([0, 1]))
    save_sets({"a": images}, number, folder / "sets.safetensors")


def read_sets(folder: Path) -> Any:
    number, found = load_sets(folder / "sets.safetensors")
    return number, found["a"].images.sum().item()


def splits() -> Contents:
    images = np.random.default_rng(1).integers(0, 256, (50, 1, 4, 4), dtype=np.uint8)
    labels = np.arange(50, dtype=np.int64) % 5
    owners = np.arange(40, dtype=np.int64) % 3
    return Contents(Split(images[:40], labels[:40], owners), Split(images[40:], labels[40:]))


def store(folder: Path, number: int) -> Any:
    return shared_store("small", [folder], "source 1", splits).checksum


def vault(folder: Path, number: int) -> None:
    Sites(folder, 5).up_to_masked(number=number)


def read_vault(folder: Path) -> Any:
    return bool(Sites(folder, 5).at("site-0").keys())


def rows(folder: Path, number: int) -> None:
    (folder / "own.csv").write_text("kind,a\nx,1.5\ny,2\n")


def arrays(folder: Path, number: int) -> None:
    np.savez(folder / "own.npz", x_train=np.ones((4, 2)), y_train=[0, 1] * 2)


READERS: dict[str, Reader] = {
    "checkpoint": Reader(checkpoint, read_checkpoint, ("last.safetensors",)),
    "checkpoint's large tensor": Reader(
        checkpoint_apart, read_apart, (f"{FOLDER}/*",), atomic=False
    ),
    "site's memory": Reader(memory, read_memory, ("record/site/0/*.safetensors",)),
    "site's large tensor": Reader(
        memory, read_memory, (f"record/site/0/{FOLDER}/*",), atomic=False
    ),
    "ledger": Reader(ledger, read_ledger, ("privacy.jsonl", "privacy.head.json")),
    "sets": Reader(sets, read_sets, ("sets.safetensors",)),
    "store": Reader(
        store,
        lambda folder: store(folder, 1),
        ("small/*.npy", "small/store.json"),
        healed=True,
        atomic=False,
    ),
    "vault": Reader(vault, read_vault, ("secrets/site-0.json",), sealed=False, atomic=False),
    "table": Reader(
        rows,
        lambda folder: read_rows(folder / "own.csv", "kind")["columns"],
        ("own.csv",),
        sealed=False,
        atomic=False,
    ),
    "arrays": Reader(
        arrays,
        lambda folder: sorted(read_npz(folder / "own.npz")),
        ("own.npz",),
        sealed=False,
        atomic=False,
    ),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record and an export of it."""
    keys = {"output-dir": str(tmp_path_factory.mktemp("whole")), "rounds": 2, "method": "fedavg"}
    record = run({**keys, "set": SMALL}).directory
    assert main(["export", str(record), "--output", str(record / "model")]) == 0
    return record


def of_record(read: Callable[[RunRecord], Any]) -> Callable[[Path], Any]:
    return lambda folder: read(RunRecord.open(folder))


def exported(folder: Path) -> Any:
    return ExportedModel.open(folder / "model").classes


RECORDED = {
    "provenance": Reader(None, of_record(lambda r: r.outcome), ("provenance.json",), sealed=False),
    "settings": Reader(None, of_record(lambda r: r.config.method), ("config.yaml",), sealed=False),
    "partition": Reader(
        None, of_record(lambda r: sorted(r.sites)), ("partition.json",), sealed=False
    ),
    "figures": Reader(None, of_record(lambda r: len(r.rounds)), ("metrics.jsonl",), sealed=False),
    "record's checkpoint": Reader(
        None, of_record(lambda r: r.checkpoint().server_round), ("checkpoint/last.safetensors",)
    ),
    "export": Reader(None, exported, ("model/model.json", "model/model.safetensors"), sealed=False),
}
EVERY = READERS | RECORDED

#: of those that others write at the same time, or could; a user's own table may be a pipe
GUARDED = [name for name in EVERY if name not in ("store", "table", "arrays", "export")]


@pytest.fixture
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Reader, Path]:
    """The reader that is named, and a folder in which its first version lies."""
    reader, folder = EVERY[request.param], tmp_path / "kept"
    if reader.write is None:
        shutil.copytree(request.getfixturevalue("whole"), folder)
    else:
        folder.mkdir()
        reader.write(folder, 1)
    return reader, folder


every = pytest.mark.parametrize("kept", EVERY, indirect=True)


def files_of(reader: Reader, folder: Path) -> list[Path]:
    found = [path for pattern in reader.files for path in sorted(folder.glob(pattern))]
    assert len(found) >= len(reader.files)
    return found


def outcome(reader: Reader, folder: Path) -> Any:
    """Return what is read; None where that is a sentence."""
    said = None
    try:
        return reader.read(folder)
    except NectarError as error:
        said = error
    for text in (str(said), said.reported):
        assert "\n" not in text
        assert text.isprintable()
    return None


def answered(reader: Reader, folder: Path, right: Any) -> bool:
    """Whether the damage is refused, or healed; of what no checksum guards something may be read."""
    found = outcome(reader, folder)
    return not reader.sealed or found == (right if reader.healed else None)


# ---- damage -------------------------------------------------------------------------------------------

CONTENTS = {
    "nothing": b"",
    "no text": b"\xff\xfe\x00",
    "a number": b"5\n",
    "a list": b"[1, 2]",
    "an object": b"{}",
    "deep": b"[" * 100_000,
    "half": b'{"schema": 1',
    "a long number": b'{"schema": ' + b"9" * 5000 + b"}",
}


@every
def test_what_was_written_is_read(kept: tuple[Reader, Path]) -> None:
    reader, folder = kept
    right = reader.read(folder)
    assert right is not None
    assert reader.read(folder) == right


@pytest.mark.parametrize("content", CONTENTS)
@every
def test_something_else_in_its_place_is_a_sentence(kept: tuple[Reader, Path], content: str) -> None:
    reader, folder = kept
    right = reader.read(folder)
    for path in files_of(reader, folder):
        before = path.read_bytes()
        path.write_bytes(CONTENTS[content])
        assert answered(reader, folder, right), path
        path.write_bytes(before)


@every
def test_one_that_is_cut_or_gone_is_a_sentence(kept: tuple[Reader, Path]) -> None:
    reader, folder = kept
    right = reader.read(folder)
    for path in files_of(reader, folder):
        before = path.read_bytes()
        for length in (1, len(before) // 3, len(before) // 2, len(before) - 3):
            path.write_bytes(before[:length])
            assert answered(reader, folder, right), (path, length)
        path.unlink()
        assert answered(reader, folder, right), path
        path.write_bytes(before)


@every
def test_any_flipped_byte_is_seen_or_means_something(kept: tuple[Reader, Path]) -> None:
    reader, folder = kept
    right = reader.read(folder)
    for path in files_of(reader, folder):
        before = path.read_bytes()
        for place in range(0, len(before), max(1, len(before) // (9 if reader.healed else 60))):
            for bit in (1, 0x40):
                path.write_bytes(
                    before[:place] + bytes([before[place] ^ bit]) + before[place + 1 :]
                )
                assert answered(reader, folder, right), (path, place)
        path.write_bytes(before)


@pytest.mark.parametrize("kept", GUARDED, indirect=True)
def test_a_pipe_in_its_place_holds_up_nobody(kept: tuple[Reader, Path]) -> None:
    reader, folder = kept
    for path in files_of(reader, folder):
        path.rename(path.with_suffix(".away"))
        os.mkfifo(path)
        outcome(reader, folder)
        path.unlink()
        path.with_suffix(".away").rename(path)


@every
def test_another_schema_is_a_sentence(kept: tuple[Reader, Path]) -> None:
    reader, folder = kept
    right = reader.read(folder)
    for path in files_of(reader, folder):
        before = path.read_bytes()
        if path.suffix == ".json" and "schema" in (said := json.loads(before)):
            path.write_text(json.dumps({**said, "schema": 999}))
            assert answered(reader, folder, right), path
            assert path.name in ("partition.json", "store.json") or not outcome(reader, folder)
            path.write_bytes(before)


# ---- what a kill and a full disk leave ----------------------------------------------------------------


class Killed(BaseException):
    """Ends the writing where it is, as a kill does."""


@pytest.fixture
def stopped_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, BaseException], None]:
    """Return what has the k-th flush or rename from now on raise."""

    def at(step: int, error: BaseException) -> None:
        left = [step]

        def counted(plain: Callable[..., Any]) -> Callable[..., Any]:
            def call(*given: Any, **more: Any) -> Any:
                left[0] -= 1
                if left[0] == 0:
                    raise error
                return plain(*given, **more)

            return call

        for name in ("fsync", "replace", "rename"):
            monkeypatch.setattr(os, name, counted(getattr(os, name)))

    return at


ATOMIC = [name for name, reader in READERS.items() if reader.atomic]


@pytest.mark.parametrize("step", range(1, 7))
@pytest.mark.parametrize("how", ["killed", "full disk"])
@pytest.mark.parametrize("kept", ATOMIC, indirect=True)
def test_what_is_left_is_the_old_one_or_the_new_one(
    kept: tuple[Reader, Path],
    how: str,
    step: int,
    stopped_at: Callable[[int, BaseException], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, folder = kept
    old = reader.read(folder)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    stopped_at(step, Killed() if how == "killed" else full)
    with suppress(Killed, OSError, NectarError):
        reader.write(folder, 2)
    monkeypatch.undo()
    found = reader.read(folder)
    reader.write(folder, 2)
    new = reader.read(folder)
    assert new != old
    assert found in (old, new) or new[: len(found)] == found
    assert not list(folder.rglob("*.tmp"))
