"""Classes of which no picture is left to judge a model by: kept where it can be, and else said with the figure."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from data_files import forget_loaded
from documents import Document
from PIL import Image

from nectar.cli import main
from nectar.records.record import RunRecord
from nectar.report import page as pages
from nectar.report.view import View

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


# ---- what sites hold out, in their own folders and in parts of one -----------------------------------------


def of_sites(place: Path, divided: bool, more: int = 1) -> list[str]:
    """Return the words of two sites in folders of theirs, or in a set that is divided: one picture of b at each.

    The second one may have ``more`` in its folder.
    """
    judged = ["evaluation.on=sites", "data.site_holdout=0.25", "data.validation=0"]
    common = ["dataset=images", "images.size=8", "images.channels=1", *judged]
    if divided:
        whole = folder(place / "whole", {"a": 40, "b": 2})
        return [*common, f"images.folder={whole}", "data.test_share=0", *SITES]
    held = {"north": 1, "south": more}
    sites = [folder(place / name, {"a": 20, "b": number}) for name, number in held.items()]
    return [*common, f"images.sites={','.join(map(str, sites))}", "images.classes=a,b"]


@pytest.mark.extended
@pytest.mark.parametrize("measure", ["accuracy", "f1"])
@pytest.mark.parametrize("divided", [True, False], ids=["divided", "folders"])
def test_a_figure_of_one_class_says_so_wherever_it_stands(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    divided: bool,
    measure: str,
) -> None:
    """In `nectar data`, log, record, report and comparison; one picture of two is never held out."""
    asked = [*of_sites(tmp_path, divided), f"evaluation.measure={measure}"]
    sentence = "no images held out at the sites of b: the accuracy is over 1 of 2 classes"
    assert main(["data", *asked]) == 0
    assert sentence in capfd.readouterr().out
    assert main([*RUN, *asked]) == 0
    assert sentence in caplog.text
    assert re.search(r"at the sites \w+ [\d.]+ over 1 of 2 classes, ", caplog.text)
    (place,) = (tmp_path / "runs").glob("2*")
    line = RunRecord.open(place).rounds[-1]
    assert line["sites"]["over"] == "1 of 2 classes"
    assert {row["over"] for row in line["evaluated"].values()} == {"1 of 2 classes"}
    page = " ".join(Document(pages.page([View(RunRecord.open(place))])).text.split())
    assert "on what each holds out over 1 of 2 classes" in page
    assert re.search(r"at the sites over 1 of 2 classes after round 1", page)
    capfd.readouterr()
    assert main(["compare", "fedavg", "--seeds", "1", *RUN[2:], *asked]) == 0
    shown = capfd.readouterr().out
    assert re.search(r"\d\S*°", shown)
    assert "° over fewer classes than the data set has" in " ".join(shown.split())


def test_of_all_sites_together_each_class_may_be_judged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A site without b is named in its row; the sum over both has all classes, and nothing is said of it."""
    assert main([*RUN, *of_sites(tmp_path, False, more=20)]) == 0
    assert "classes" not in caplog.text.partition("round 1/1")[2]
    (place,) = (tmp_path / "runs").glob("2*")
    line = RunRecord.open(place).rounds[-1]
    assert "over" not in line["sites"]
    assert [row.get("over") for row in line["evaluated"].values()] == ["1 of 2 classes", None]
