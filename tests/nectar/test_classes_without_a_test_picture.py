"""Classes of which no picture is left to judge a model by: kept where it can be, and else said with the figure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from data_files import forget_loaded
from PIL import Image

from nectar.cli import main

SITES = ("federation.sites=2", "partition.kind=iid")
RUN = ("run", "fedavg", "rounds=1", "model.width=4", "fedavg.epochs=1")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forget_loaded(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NECTAR_RUNS", str(tmp_path / "runs"))


def folder(place: Path, sizes: dict[str, int]) -> Path:
    rng = np.random.default_rng(0)
    for name, number in sizes.items():
        (place / name).mkdir(parents=True)
        for each in range(number):
            Image.fromarray(rng.integers(0, 255, (8, 8), np.uint8)).save(
                place / name / f"{each}.png"
            )
    return place


def words(place: Path) -> list[str]:
    return [
        "dataset=images",
        f"images.folder={place}",
        "images.size=8",
        "images.channels=1",
        *SITES,
    ]


def test_a_class_of_two_pictures_keeps_one_for_the_test_and_one_alone_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    place = folder(tmp_path / "set", {"c0": 40, "c1": 40, "c2": 3, "c3": 2, "c4": 1})
    assert main(["data", *words(place)]) == 0
    message = capfd.readouterr().out
    assert "no test images of c4: the accuracy is over 4 of 5 classes" in message
    assert main([*RUN, *words(place)]) == 0
    told = caplog.text
    assert "no test images of c4: the accuracy is over 4 of 5 classes" in told
    assert "over 4 of 5 classes, loss" in told


def test_a_test_folder_that_lacks_a_class(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    folder(tmp_path / "set/train", {"a": 20, "b": 20, "c": 20})
    folder(tmp_path / "set/test", {"a": 5, "b": 5})
    assert main(["data", *words(tmp_path / "set")]) == 0
    assert "no test images of c: the accuracy is over 2 of 3 classes" in capfd.readouterr().out
    assert main([*RUN, *words(tmp_path / "set")]) == 0
    assert "over 2 of 3 classes, loss" in caplog.text


def test_so_of_validation_and_of_what_sites_hold_out(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    place = folder(tmp_path / "set", {"a": 40, "b": 40, "c": 2})
    assert main(["data", *words(place), "data.site_holdout=0.1"]) == 0
    message = capfd.readouterr().out
    assert "no validation images of c: the accuracy is over 2 of 3 classes" in message
    assert "no images held out at the sites of c: the accuracy is over 2 of 3 classes" in message
    full = folder(tmp_path / "full", {"a": 40, "b": 40, "c": 12})
    assert main(["data", *words(full), "data.validation=0.1"]) == 0
    assert "the accuracy is over" not in capfd.readouterr().out
