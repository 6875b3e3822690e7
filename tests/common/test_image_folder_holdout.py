"""Folders of images without a test split, and class lists that are the names of folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from data_files import forget_loaded
from image_folders import CLASSES, COLOURS, paint, paint_split

from common.config.loading import load as load_config
from common.division import Division
from common.errors import ConfigError, DataError
from common.samples.dataset import Dataset
from nectar import cli
from nectar.arguments import parse_arguments, with_class_list


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forget_loaded(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NECTAR_DATA", str(tmp_path))


def read(folder: Path, text: str = "", seed: int = 0) -> Dataset:
    text = f"images.folder={folder} images.classes={CLASSES} images.size=8 {text}"
    return Division(load_config({"dataset": "images", "seed": seed, "set": text})).dataset


def marks(dataset: Dataset) -> tuple[set[bytes], set[bytes]]:
    """Return the images of both splits, each as what tells it from any other."""
    train, test = (
        {image.tobytes() for image in np.asarray(split.images)}
        for split in (dataset.train, dataset.test)
    )
    return train, test


@pytest.mark.parametrize("below", [".", "train"])
def test_a_test_split_is_held_out_by_the_seed(tmp_path: Path, below: str) -> None:
    for name in COLOURS:
        paint(tmp_path / "set" / below, name, 10)
    first = read(tmp_path / "set")
    assert np.bincount(first.train.labels).tolist() == [8, 8, 8]
    assert np.bincount(first.test.labels).tolist() == [2, 2, 2]
    train, test = marks(first)
    assert (len(train), len(test), train & test) == (24, 6, set())
    assert isinstance(first.test.images.base, np.memmap)
    other = marks(read(tmp_path / "set", seed=1))
    assert other[1] != test
    assert other[0] | other[1] == train | test
    third = read(tmp_path / "set", "data.test_share=0.4")
    assert np.bincount(third.test.labels).tolist() == [4, 4, 4]


def test_a_folder_with_a_test_split_keeps_it(tmp_path: Path) -> None:
    paint_split(tmp_path / "set", train=10, test=4)
    dataset = read(tmp_path / "set")
    assert (len(dataset.train), len(dataset.test)) == (30, 12)


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for name, colour in (("train", "red"), ("boat", "blue")):
        paint(tmp_path / "new", colour, 5)
        (tmp_path / "set").mkdir(exist_ok=True)
        (tmp_path / "new" / colour).rename(tmp_path / "set" / name)
    text = f"images.folder={tmp_path / 'set'} images.classes=boat,train images.size=8"
    dataset = Division(load_config({"dataset": "images", "set": text})).dataset
    assert np.bincount(dataset.train.labels).tolist() == [4, 4]
    assert np.bincount(dataset.test.labels).tolist() == [1, 1]


def test_a_plain_folder_of_other_classes_is_refused(tmp_path: Path) -> None:
    paint(tmp_path / "set", "red", 2)
    (tmp_path / "set/red").rename(tmp_path / "set/reed")
    with pytest.raises(DataError, match=r"nor one of a class \(red, green, blue\)"):
        read(tmp_path / "set")
    paint(tmp_path / "set", "green", 2)
    with pytest.raises(DataError, match=r"reed is a folder of no known class \(the nearest is red"):
        read(tmp_path / "set")


@pytest.mark.parametrize("below", [".", "train", "test"])
def test_the_class_list_is_the_names_of_the_folders_where_none_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], below: str
) -> None:
    for name in COLOURS:
        paint(tmp_path / "set" / below, name, 1)
    (tmp_path / "set" / below / ".cache").mkdir()
    words = ["dataset=images", f"images.folder={tmp_path / 'set'}"]
    assert cli.main(["config", *words]) == 0
    assert "classes: blue,green,red" in capsys.readouterr().out
    stated = with_class_list(parse_arguments([*words, "images.classes=green,red,blue"]))
    assert load_config(stated).images.names == ("green", "red", "blue")
    with pytest.raises(ConfigError, match="nowhere is not there"):
        with_class_list(parse_arguments(["dataset=images", "images.folder=nowhere"]))
