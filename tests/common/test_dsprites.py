"""dSprites: what is read of a small set of its form, what is refused, and the published grid's own numbers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from real_data import data_directory
from sprites import write_dsprites

from common.config.loading import load as load_config
from common.data.loading import load
from common.data.published.sources import SOURCES, read_dsprites
from common.division import Division
from common.errors import DataError

pytestmark = pytest.mark.usefixtures("fresh_cache")


Arrays = dict[str, NDArray[np.generic]]


def write_small(data_dir: Path) -> int:
    """Write a grid of 3 shapes, 2 scales, 2 angles and 4 x 4 places, two of which lie in each half."""
    (data_dir / "dsprites").mkdir(parents=True, exist_ok=True)
    return write_dsprites(
        data_dir / "dsprites" / "small.npz",
        scales=[0, 5],
        orientations=[0, 7],
        xs=[0, 10, 20, 31],
        ys=[0, 10, 20, 31],
    )


def test_a_client_has_one_shape_in_one_quarter_and_the_test_set_takes_of_each(
    tmp_path: Path,
) -> None:
    n = write_small(tmp_path)
    assert n == 3 * 2 * 2 * 16
    dataset = load("dsprites", tmp_path)
    train, test = dataset.train, dataset.test
    assert train.images.shape[1:] == (1, 64, 64)
    assert set(np.unique(train.images)) == {0, 1}
    assert (len(train), len(test)) == (n - 19, 19)  # a tenth of 192, rounded
    assert train.owners is not None
    assert sorted(np.unique(train.owners)) == list(range(12))
    # sixteen images a client, of which one or two are for the test
    assert set(np.bincount(train.owners)) == {14, 15}
    for owner in range(12):
        mine = train.owners == owner
        assert set(train.labels[mine]) == {owner // 4}
        # where the white lies, counted in the pixels themselves: every sprite of a client on one side of the middle
        rows, columns = _middles(train.images[mine, 0])
        right, low = owner % 4 % 2, owner % 4 // 2
        assert ((columns > 31.5) == bool(right)).all()
        assert ((rows > 31.5) == bool(low)).all()


def _middles(images: NDArray[np.generic]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the row and the column in the middle of each image's white."""
    white = images.astype(np.float64)
    total = white.sum((1, 2))
    places = np.arange(64.0)
    return white.sum(2) @ places / total, white.sum(1) @ places / total


def test_no_image_is_in_both_splits_and_a_file_always_gives_the_same_ones(tmp_path: Path) -> None:
    write_small(tmp_path)
    path = tmp_path / "dsprites" / "small.npz"
    (train, test), (again, _) = read_dsprites([path]), read_dsprites([path])
    assert np.array_equal(train.images, again.images)
    seen = {image.tobytes() for image in np.concatenate([train.images, test.images])}
    # a square turned by 7/39 of a circle is no other square, so all the images differ
    assert len(seen) == len(train) + len(test)


def test_a_run_gives_each_of_its_twelve_sites_one_client(tmp_path: Path) -> None:
    write_small(tmp_path)
    config = load_config({"dataset": "dsprites", "data-dir": str(tmp_path)})
    assert (config.partition.kind, config.federation.sites) == ("natural", 12)
    run = Division(config).run
    for site, indices in enumerate(Division(run.config).partition(12)):
        assert set(Division(run.config).dataset.train.labels[indices]) == {site // 4}


def test_metadata_are_never_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The published file holds a pickled dictionary; one that would run code is as good as any."""

    class Trap:
        def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
            return os.system, (f"touch {tmp_path}/run",)

    write_small(tmp_path)
    path = tmp_path / "dsprites" / "small.npz"
    held = arrays(path)
    np.savez(path, metadata=np.array(Trap(), dtype=object), **held)
    assert len(load("dsprites", tmp_path).train)
    assert not (tmp_path / "run").exists()


def arrays(path: Path) -> Arrays:
    with np.load(path) as held:
        return {name: held[name] for name in held.files}


def brighter(held: Arrays) -> None:
    held["imgs"] = held["imgs"] * np.uint8(255)


def smaller(held: Arrays) -> None:
    held["imgs"] = held["imgs"][:, ::2, ::2]


def fewer_factors(held: Arrays) -> None:
    held["latents_classes"] = held["latents_classes"][:, :5]


def a_fourth_shape(held: Arrays) -> None:
    changed = held["latents_classes"].copy()
    changed[-1, 1] = 3
    held["latents_classes"] = changed


def no_values(held: Arrays) -> None:
    del held["latents_values"]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (brighter, "of 0 and 1"),
        (smaller, "not uint8 (n, 64, 64)"),
        (fewer_factors, "latents_classes are int64 (192, 5)"),
        (a_fourth_shape, "a shape outside 0..2"),
        (no_values, "latents_values"),
    ],
)
def test_a_file_of_another_form_is_refused_by_one_sentence(
    tmp_path: Path, spoil: Callable[[Arrays], None], said: str
) -> None:
    write_small(tmp_path)
    path = tmp_path / "dsprites" / "small.npz"
    held = arrays(path)
    spoil(held)
    np.savez(path, **held)
    with pytest.raises(DataError, match=r"is not dSprites' \.npz") as refusal:
        load("dsprites", tmp_path)
    assert said in str(refusal.value)
    assert str(path) in str(refusal.value)


@pytest.mark.parametrize("keep", [0, 100, 2000])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: int) -> None:
    write_small(tmp_path)
    path = tmp_path / "dsprites" / "small.npz"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"is not dSprites' \.npz"):
        load("dsprites", tmp_path)


def test_a_missing_file_and_two_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"\*\.npz is missing and is never downloaded"):
        load("dsprites", tmp_path)
    write_small(tmp_path)
    small = tmp_path / "dsprites" / "small.npz"
    (small.parent / "other.npz").write_bytes(small.read_bytes())
    with pytest.raises(DataError, match=r"holds 2 \.npz files"):
        load("dsprites", tmp_path)


def test_a_changed_file_makes_another_store(tmp_path: Path) -> None:
    write_small(tmp_path)
    before = SOURCES["dsprites"].fingerprint(tmp_path)
    path = tmp_path / "dsprites" / "small.npz"
    os.utime(path, ns=(1, 1))
    assert SOURCES["dsprites"].fingerprint(tmp_path) != before


@pytest.mark.long
@pytest.mark.extended
def test_the_real_grid() -> None:
    """46,080 images: twelve clients of 3,456, a tenth at the server, and the constants of the catalogue."""
    train, test = SOURCES["dsprites"].splits(data_directory("dsprites"))
    assert (len(train), len(test)) == (41_472, 4_608)
    assert train.owners is not None
    assert set(np.bincount(train.owners)) == {3_456}
    pixels = np.concatenate([train.images, test.images])
    assert pixels.mean() == pytest.approx(0.0425, abs=5e-5)
    assert pixels.std() == pytest.approx(0.2017, abs=5e-5)
