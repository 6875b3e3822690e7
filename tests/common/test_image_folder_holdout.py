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
from nectar.arguments import parse_arguments, resolved


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forget_loaded(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NECTAR_DATA", str(tmp_path))


def read(folder: Path, text: str = "", seed: int = 0) -> Dataset:
    text = f"images.folder={folder} images.classes={CLASSES} images.size=8 {text}"
    return Division(load_config({"dataset": "images", "seed": seed, "set": text})).dataset


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
    stated = resolved(parse_arguments([*words, "images.classes=green,red,blue"]))
    assert stated.images.names == ("green", "red", "blue")
    with pytest.raises(ConfigError, match="nowhere does not exist"):
        resolved(parse_arguments(["dataset=images", "images.folder=nowhere"]))
