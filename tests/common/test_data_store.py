"""The store: written once, shared by processes, checked, rebuilt where it is damaged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from data_files import forget_loaded, small_mnist, write_source
from places import ROOT

from common.data.loading import load
from common.data.store import Contents, shared_store
from common.errors import DataError
from common.samples.dataset import Split


def _splits() -> Contents:
    images = np.random.default_rng(1).integers(0, 256, (50, 1, 4, 4), dtype=np.uint8)
    labels = np.arange(50, dtype=np.int64) % 5
    return Contents(Split(images[:40], labels[:40]), Split(images[40:], labels[40:]))


def _never() -> Contents:
    raise AssertionError("the source was read although there is a store")


def _gone() -> Contents:
    raise DataError("train-images is missing")


def _is_mapped(array: np.ndarray, folder: Path) -> bool:
    base: object = array
    while base is not None:
        if isinstance(base, np.memmap):
            return Path(str(base.filename)).is_relative_to(folder)
        base = getattr(base, "base", None)
    return False


def test_second_use_maps_what_the_first_wrote(tmp_path: Path) -> None:
    first = shared_store("small", [tmp_path], "source 1", _splits)
    second = shared_store("small", [tmp_path], "source 1", _never)
    train, test, *_ = _splits()
    np.testing.assert_array_equal(second.train.images, train.images)
    np.testing.assert_array_equal(second.test.labels, test.labels)
    assert second.train.images.dtype == np.uint8
    assert second.checksum == first.checksum
    for split in (first.train, second.train, second.test):
        assert _is_mapped(split.images, tmp_path / "small")
        assert not split.images.flags.writeable


def test_damaged_store_without_its_source_is_an_error_that_names_both(tmp_path: Path) -> None:
    shared_store("small", [tmp_path], "source 1", _splits)
    (tmp_path / "small/train-images.npy").write_bytes(b"junk")
    with pytest.raises(DataError, match=r"small is damaged .* train-images is missing"):
        shared_store("small", [tmp_path], "source 1", _gone)


def test_store_of_other_files_is_not_taken(tmp_path: Path) -> None:
    shared_store("small", [tmp_path], "source 1", _splits)
    with pytest.raises(DataError, match="made from other files"):
        shared_store("small", [tmp_path], "source 2", _gone)


def test_what_a_killed_builder_left_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "small.partial").mkdir()
    (tmp_path / "small.partial/train-images.npy").write_bytes(b"half")
    shared_store("small", [tmp_path], "source 1", _splits)
    assert not (tmp_path / "small.partial").exists()


def test_a_store_serves_where_the_publishers_files_are_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = write_source(monkeypatch, tmp_path, "mnist", small_mnist())
    before = load("mnist", tmp_path).checksum
    for file in source.files:
        (tmp_path / file.path).unlink()
    forget_loaded(monkeypatch)
    assert load("mnist", tmp_path).checksum == before


def test_a_source_that_cannot_be_read_is_read_once_and_is_no_matter_of_the_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    def truncated() -> Contents:
        calls.append(1)
        raise OSError("image file is truncated")

    with pytest.raises(DataError, match=r"small cannot be read \(image file is truncated\)"):
        shared_store("small", [tmp_path / "a", tmp_path / "b"], "source 1", truncated)
    assert calls == [1]
    assert "store can be written" not in caplog.text


def test_unwritable_data_directory_uses_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    forget_loaded(monkeypatch)
    write_source(monkeypatch, tmp_path / "data", "mnist", small_mnist())
    # A file where the folder would be: unlike permissions, that stops the superuser too.
    (tmp_path / "data/nectar-store").write_text("in the way")
    assert _is_mapped(load("mnist", tmp_path / "data").train.images, tmp_path / "cache")


def test_without_any_place_for_a_store_the_data_is_still_had(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    forget_loaded(monkeypatch)
    write_source(monkeypatch, tmp_path / "data", "mnist", small_mnist())
    expected = load("mnist", tmp_path / "data").checksum
    forget_loaded(monkeypatch)
    (tmp_path / "cache").write_text("in the way")
    (tmp_path / "other/MNIST").parent.mkdir()
    (tmp_path / "data/MNIST").rename(tmp_path / "other/MNIST")
    (tmp_path / "other/nectar-store").write_text("in the way")
    data = load("mnist", tmp_path / "other")
    assert data.checksum == expected
    assert len(data.train) == 30


_FIRST_USE = """
import sys, time
from pathlib import Path
import numpy as np
from common.samples.dataset import Split
from common.data.store import Contents, shared_store
root = Path(sys.argv[1])

def read_source():
    with (root / "builds").open("a") as file:
        file.write("built\\n")
    time.sleep(0.5)  # long enough that the others come while this one builds
    images = np.arange(60000 * 16, dtype=np.uint32).astype(np.uint8).reshape(-1, 1, 4, 4)
    split = Split(images, np.zeros(len(images), np.int64))
    return Contents(split, split)

(root / f"ready-{sys.argv[2]}").touch()
while len(list(root.glob("ready-*"))) < 2:
    time.sleep(0.01)
print(shared_store("small", [root / "store"], "source 1", read_source).checksum)
"""


def test_processes_that_come_at_once_build_one_store(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _FIRST_USE, str(tmp_path), str(number)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for number in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert len(set(outputs)) == 1
    assert (tmp_path / "builds").read_text() == "built\n"
