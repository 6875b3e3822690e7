"""A folder of images as a data set: what is read, what is left out, what is refused, what is shared."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from data_files import forget_loaded
from image_folders import CLASSES, paint, paint_split

from common.config.loading import load as load_config
from common.data.loading import load, load_site
from common.data.published.catalogue import describe
from common.division import Division
from common.errors import DataError
from common.learning.run import Run
from common.samples.dataset import Dataset
from common.samples.inputs import samples
from common.settings.images import ImagesSettings

pytestmark = pytest.mark.usefixtures("fresh_cache")


def settings(**values: object) -> ImagesSettings:
    return ImagesSettings.model_validate({"folder": "set", "classes": CLASSES, "size": 8, **values})


def read(tmp_path: Path, **values: object) -> Dataset:
    return load("images", tmp_path, settings(**values))


def again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **values: object) -> Dataset:
    forget_loaded(monkeypatch)
    return read(tmp_path, **values)


def test_a_folder_becomes_splits_in_the_order_of_its_class_list(tmp_path: Path) -> None:
    paint_split(tmp_path / "set", train=4, test=2)
    dataset = read(tmp_path)
    assert dataset.info == describe("images", settings())
    assert dataset.info.shape == (3, 8, 8)
    assert dataset.train.images.shape == (12, 3, 8, 8)
    assert dataset.train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert dataset.test.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert (
        dataset.train.images.mean(axis=(2, 3)).argmax(axis=1).tolist()
        == [0] * 4 + [1] * 4 + [2] * 4
    )
    inputs = samples(dataset.train, dataset.info).inputs(slice(0, 4))
    expected = dataset.train.images[:4].astype(np.float64) / 255 * 2 - 1
    np.testing.assert_allclose(inputs.numpy(), expected, atol=1e-6)
    assert dataset.skipped == ()


@pytest.mark.parametrize("name", ["val", "validation"])
def test_the_test_split_may_be_called_otherwise(tmp_path: Path, name: str) -> None:
    paint_split(tmp_path / "set", train=1, test=1)
    (tmp_path / "set/test").rename(tmp_path / "set" / name)
    assert len(read(tmp_path).test) == 3


def test_the_store_is_no_more_open_than_the_folder(tmp_path: Path) -> None:
    folder = paint_split(tmp_path / "set", train=1, test=1)
    folder.chmod(0o700)
    store = read(tmp_path).store
    assert store is not None
    assert store.stat().st_mode & 0o777 == 0o700


def test_what_is_no_image_is_named_with_its_reason_and_what_systems_leave_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train = paint_split(tmp_path / "set", train=30, test=1) / "train"
    png = (train / "red/000.png").read_bytes()
    (train / "red/empty.png").touch()
    (train / "red/half.png").write_bytes(png[: len(png) // 2])
    (train / "red/text.jpg").write_text("no image")
    (train / "red/notes.txt").write_text("no image")
    (train / "stray.png").write_bytes(png)
    (train / "red/more").mkdir()
    (train / "red/more/deep.png").write_bytes(png)
    (train / "red/gone.png").symlink_to(tmp_path / "nowhere.png")
    os.mkfifo(train / "red/pipe.png")
    for hidden in (".DS_Store", "Thumbs.db", "desktop.ini", "._000.png"):
        (train / "blue" / hidden).write_bytes(b"x")
    (train / "green/link.png").symlink_to(train / "red/000.png")
    (train / "green/really-a-png.jpg").write_bytes(png)
    with caplog.at_level("WARNING", "flwr"):
        dataset = read(tmp_path)
    assert {left.path: left.reason for left in dataset.skipped} == {
        "train/stray.png": "is outside the classes' folders",
        "train/red/empty.png": "empty",
        "train/red/gone.png": "no file that can be read",
        "train/red/half.png": "damaged (truncated)",
        "train/red/more/deep.png": "is in a folder below its class's",
        "train/red/notes.txt": "unknown ending '.txt'",
        "train/red/pipe.png": "no file that can be read",
        "train/red/text.jpg": "not an image of a known format",
    }
    assert np.bincount(dataset.train.labels).tolist() == [30, 32, 30]
    message = [record.message for record in caplog.records]
    assert len(message) == 6, "five by name, the others by reason"
    assert "and 3 more (" in message[-1]
    assert again(monkeypatch, tmp_path).skipped == dataset.skipped, "the store knows them too"


def test_too_many_that_are_no_image_are_refused_with_their_number(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    train = paint_split(tmp_path / "set", train=3, test=1) / "train"
    for i in range(2):
        (train / f"red/bad{i}.png").touch()
    message = r"2 of 14 files below .*set cannot be used \(empty: 2\), more than images.max_bad=0.1"
    with pytest.raises(DataError, match=message) as caught:
        read(tmp_path)
    assert "bad0" not in str(caught.value), "names stay in the log: the sentence may leave a site"
    assert len(again(monkeypatch, tmp_path, max_bad=0.2).train) == 9
    with pytest.raises(DataError, match="2 of 14"):
        again(monkeypatch, tmp_path, max_bad=0.14)


def test_a_class_without_training_images_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = paint_split(tmp_path / "set", train=2, test=1)
    for path in (folder / "train/green").iterdir():
        path.unlink()
    with caplog.at_level("WARNING", "flwr"):
        assert set(read(tmp_path).train.labels.tolist()) == {0, 2}
    assert "has no image of green" in caplog.text


def test_a_composed_and_a_decomposed_accent_are_one_class(tmp_path: Path) -> None:
    for split in ("train", "test"):
        paint(tmp_path / "set" / split, "red", 1)
        paint(tmp_path / "set" / split, "green", 1)
        (tmp_path / "set" / split / "red").rename(tmp_path / "set" / split / "pe\u0302che")
    assert len(read(tmp_path, classes="p\u00eache,green").train) == 2


def test_a_split_without_an_image(tmp_path: Path) -> None:
    paint_split(tmp_path / "set", train=1, test=0)
    with pytest.raises(DataError, match=r"set/test holds no image that can be used"):
        read(tmp_path)


# --- the configuration


def resolve(text: str) -> Run:
    return Division(load_config({"dataset": "images", "set": f"images.classes=a,b {text}"})).run


def test_the_configuration_describes_it_without_data() -> None:
    info = resolve("images.size=24 images.channels=1 images.bits=16 images.mean=0.2").info
    assert (info.name, info.shape, info.classes) == ("images", (1, 24, 24), ("a", "b"))
    assert (info.mean, info.std, info.scale) == ((0.2,), (0.5,), 65535.0)
    flowers = Division(load_config({"dataset": "flowers160"})).run.info
    assert flowers.classes == ("daisy", "dandelion", "roses", "sunflowers", "tulips")
    assert flowers.mean == (0.485, 0.456, 0.406)


def test_a_folder_implies_the_data_set_as_a_file_does(tmp_path: Path) -> None:
    folder = f"images.folder=/x images.classes={CLASSES}"
    assert load_config({"set": folder}).dataset == "images"
    assert load_config({"set": f"images.sites=/a,/b images.classes={CLASSES}"}).dataset == "images"
    assert load_config({"set": folder, "dataset": "flowers160"}).dataset == "flowers160"
    assert load_config({"set": folder, "experiment": "digits-alpha001"}).dataset == "images"
    own = tmp_path / "own.yaml"
    own.write_text(f"images: {{folder: /x, classes: '{CLASSES}'}}\n")
    assert load_config({"config": str(own)}).dataset == "images"
    later = load_config({"config": str(own), "dataset": "digits"})
    assert (later.dataset, later.images.folder) == ("digits", "")


def test_the_digest_knows_the_images_and_not_how_many_bad_ones_are_borne() -> None:
    digest = resolve("").config.digest()
    assert resolve("images.classes='a, b'").config.digest() == digest
    assert resolve("images.max_bad=0.5").config.digest() == digest
    for other in ("images.size=64", "images.classes=b,a", "images.mean=0.4", "images.folder=/x"):
        assert resolve(other).config.digest() != digest
    assert "images" not in load_config({}).sections(), "no part of a run that has no folder"


# --- a site's own folder


@pytest.mark.parametrize("below", [".", "train"])
def test_a_sites_own_folder_may_lack_classes(tmp_path: Path, below: str) -> None:
    paint(tmp_path / "own" / below, "blue", 3)
    dataset = load_site("images", settings(), tmp_path / "own")
    assert dataset.train.labels.tolist() == [2, 2, 2]
    assert len(dataset.test) == 0
    assert dataset.store is not None
    assert dataset.store.is_relative_to(tmp_path / "cache"), "not where the run's data-dir points"


def test_a_sites_own_folder_is_refused_for_what_it_is_not(tmp_path: Path) -> None:
    paint(tmp_path / "own", "blue", 1)
    (tmp_path / "own/purple").mkdir()
    with pytest.raises(DataError, match="own/purple is a folder of no known class"):
        load_site("images", settings(), tmp_path / "own")
    with pytest.raises(DataError, match="needs a data set that is a folder of images, which mnist"):
        load_site("mnist", ImagesSettings(), tmp_path / "own")
    with pytest.raises(DataError, match=r"there is no folder .*other"):
        load_site("images", settings(), tmp_path / "other")
