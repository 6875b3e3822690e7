"""Large tensors that stay the same are stored once: by a site between its versions, by a server between checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from client_app.state import DirectoryState
from common.storage import tensor_file as tensors_apart
from server_app.checkpoint import Checkpoint

#: 1.2 MB of bytes, and 4 kB of floats
LARGE = torch.arange(1_200_000).to(torch.uint8)
SMALL = torch.arange(1000.0)


def apart_in(directory: Path) -> list[Path]:
    return sorted((directory / tensors_apart.FOLDER).glob("*"))


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*.safetensors"))


@pytest.fixture
def state(tmp_path: Path) -> DirectoryState:
    return DirectoryState(tmp_path, "record", "site")


def test_a_sites_share_is_written_once_for_all_versions(
    state: DirectoryState, tmp_path: Path
) -> None:
    for number in (1, 2, 3):
        state.save(number, {"share/images": LARGE, "/c": SMALL * number})
    assert state.rounds() == [1, 2, 3]
    for number in (1, 2, 3):
        found = state.load(number)
        assert torch.equal(found["share/images"], LARGE)
        assert torch.equal(found["/c"], SMALL * number)
    assert len(apart_in(next((tmp_path / "record" / "site").glob("0")))) == 1
    assert size_of(tmp_path) < 1_200_000 + 3 * 6_000


def test_what_no_version_holds_any_more_goes(state: DirectoryState, tmp_path: Path) -> None:
    state.save(1, {"c": LARGE})
    for number in range(2, 6):
        state.save(number, {"c": LARGE + number}, taken=number - 1)
    place = tmp_path / "record" / "site" / "0"
    assert len(apart_in(place)) == len(state.rounds()) == 3
    state.save(6, {"c": SMALL})
    state.save(7, {"c": SMALL})
    state.save(8, {"c": SMALL})
    assert apart_in(place) == []


def test_equal_bytes_of_another_shape_or_type_are_another_tensor(state: DirectoryState) -> None:
    state.save(1, {"a": LARGE, "b": LARGE.reshape(2, -1), "c": LARGE.view(torch.int8)})
    found = state.load(1)
    assert found["b"].shape == (2, 600_000)
    assert (found["a"].dtype, found["c"].dtype) == (torch.uint8, torch.int8)


def test_a_server_stores_apart_what_stood_in_the_checkpoint_before(tmp_path: Path) -> None:
    """The first holds it, as what changes every round is held; the second and third name it."""
    path = tmp_path / "last.safetensors"
    sizes = []
    for number in (1, 2, 3):
        Checkpoint(number, {"w": SMALL}, {"pool": {"": LARGE}, "c": SMALL * number}).save(path)
        sizes.append(path.stat().st_size)
        found = Checkpoint.load(path)
        assert torch.equal(found.strategy["pool"][""], LARGE)
        assert torch.equal(found.strategy["c"], SMALL * number)
    assert sizes[0] > 1_200_000
    assert max(sizes[1:]) < 20_000
    (kept,) = apart_in(tmp_path)
    before = kept.stat().st_mtime_ns
    Checkpoint(4, {"w": SMALL}, {"pool": {"": LARGE}}).save(path)
    assert kept.stat().st_mtime_ns == before, "it is not written again"


def test_what_changes_every_round_stays_in_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    for number in (1, 2, 3):
        Checkpoint(number, {"w": SMALL}, {"c": LARGE + number}).save(path)
    assert apart_in(tmp_path) == []
    assert torch.equal(Checkpoint.load(path).strategy["c"], LARGE + 3)


def test_another_checkpoint_beside_it_keeps_what_it_names(tmp_path: Path) -> None:
    last, best = tmp_path / "last.safetensors", tmp_path / "best.safetensors"
    for path in (best, best, last, last):
        Checkpoint(1, {"w": SMALL}, {"pool": LARGE}).save(path)
    Checkpoint(2, {"w": SMALL}, {"pool": SMALL}).save(last)
    assert len(apart_in(tmp_path)) == 1
    assert torch.equal(Checkpoint.load(best).strategy["pool"], LARGE)
    Checkpoint(3, {"w": SMALL}, {"pool": SMALL}).save(best)
    assert apart_in(tmp_path) == []
