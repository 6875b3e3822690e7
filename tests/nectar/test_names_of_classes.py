"""One class is one name, however it is spelt: Unicode's forms and blanks are one, what looks alike is told."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from data_files import forget_loaded
from image_folders import paint

from nectar import cli

pytestmark = pytest.mark.usefixtures("fresh_data")

NFC = unicodedata.normalize("NFC", "é")
NFD = unicodedata.normalize("NFD", "é")
QUICK = "fedavg rounds=1 federation.sites=2 partition.kind=iid fedavg.epochs=1"
ALIKE = "ONE CLASS OR TWO?"


def written(path: Path, labels: list[str]) -> list[str]:
    """Write a table of these labels over and over, and return the words that name it."""
    rows = [f"{i % len(labels)},{i},{labels[i % len(labels)]}" for i in range(48)]
    path.write_text("\n".join(["a,b,kind", *rows]) + "\n", encoding="utf-8")
    return [
        f"data.file={path}",
        "data.label=kind",
        "data.scale=minmax",
        "data.low=0",
        "data.high=50",
    ]


Told = Callable[..., str]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Told:
    """Return what carries out a command and returns all that it says."""

    def carry_out(*words: str, code: int = 0) -> str:
        capsys.readouterr()
        caplog.clear()
        assert cli.main([*words]) == code
        return caplog.text + "".join(capsys.readouterr())

    return carry_out


def run(told: Told, at: Path, *words: str) -> tuple[list[str], str]:
    """Run what the words say; return the classes on record, and all that was said."""
    message = told("run", *QUICK.split(), *words, f"output-dir={at / 'runs'}")
    (record,) = (at / "runs").glob("[!.]*")
    return json.loads((record / "partition.json").read_text())["classes"], message


@pytest.mark.parametrize(
    "labels", [[NFC, NFD, "x"], ["é ", "é", " x"], ["a", " a", "a ", "b"]], ids=ascii
)
def test_a_table_with_one_name_in_two_forms_has_one_class(
    labels: list[str], tmp_path: Path, told: Told
) -> None:
    words = written(tmp_path / "own.csv", labels)
    classes, message = run(told, tmp_path, *words)
    assert classes == sorted({unicodedata.normalize("NFC", name.strip()) for name in labels})
    assert ALIKE not in message


@pytest.mark.parametrize(
    ("labels", "named"),
    [
        (["0", "1", "0.0", "1.0"], "'0' and '0.0', '1' and '1.0'"),
        (["Yes", "No", "yes", "no"], "'Yes' and 'yes'"),
        (["new york", "newyork", "x"], "'new york' and 'newyork'"),
        (["1e3", "1000", "7"], "'1000' and '1e3'"),
    ],
    ids=ascii,
)
def test_names_that_look_alike_are_a_loud_line(
    labels: list[str], named: str, tmp_path: Path, told: Told
) -> None:
    words = written(tmp_path / "own.csv", labels)
    classes, message = run(told, tmp_path, *words)
    assert len(classes) == len(labels)
    for text in (message, told("data", *words, "federation.sites=2")):
        (line,) = [line for line in text.splitlines() if ALIKE in line]
        assert named in line.replace("'yes' and 'Yes'", "'Yes' and 'yes'")


def test_classes_that_are_typed_in_another_form_are_those_of_the_data(
    tmp_path: Path, told: Told
) -> None:
    words = written(tmp_path / "own.csv", [NFD, "x"])
    classes, _ = run(told, tmp_path, *words, f"images.classes=x,{NFC}".replace("x,é", "x,é"))
    assert classes == ["x", NFC]


@pytest.mark.parametrize("brought", [NFC, NFD, f" {NFD} "], ids=ascii)
def test_an_npz_names_classes_in_any_form(brought: str, tmp_path: Path, told: Told) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    labels = np.array([NFD, "x"])[np.arange(40) % 2]
    np.savez(tmp_path / "own.npz", train_images=images, train_labels=labels, classes=[brought, "x"])
    classes, _ = run(told, tmp_path, f"data.file={tmp_path / 'own.npz'}", "model.depth=1")
    assert classes == [NFC, "x"]


@pytest.mark.parametrize("split", ["", "train"])
@pytest.mark.parametrize("names", [(NFC, NFD), ("cat", "cat ")], ids=ascii)
def test_two_folders_of_one_name_lose_no_picture(
    names: tuple[str, str], split: str, tmp_path: Path, told: Told
) -> None:
    """As a Mac's archive leaves them: 20 of 80 pictures were gone without a word."""
    folder = tmp_path / "set"
    for colour, name in zip(("red", "green", "blue"), (*names, "x"), strict=True):
        paint(folder / split, colour, 10)
        (folder / split / colour).rename(folder / split / name)
    words = ["dataset=images", f"images.folder={folder}", "images.size=8", "model.depth=1"]
    message = told("data", *words, "federation.sites=2", "data.test_share=0", "evaluation.on=none")
    assert "30 images" in message
    assert "2 folders are called" in message
    classes, _ = run(told, tmp_path, *words)
    assert classes == sorted([unicodedata.normalize("NFC", names[0]), "x"])


def test_a_folder_whose_name_is_spelt_otherwise_than_the_list_is_read(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    for colour, name in zip(("red", "green"), (NFD, "x"), strict=True):
        paint(tmp_path / "set", colour, 10)
        (tmp_path / "set" / colour).rename(tmp_path / "set" / name)
    words = [
        f"images.folder={tmp_path / 'set'}",
        "images.size=8",
        "data.test_share=0",
        "data.validation=0",
        "evaluation.on=none",
    ]
    listed = ["dataset=images", f"images.classes={NFC},x", *words, "federation.sites=2"]
    assert "20 images" in told("data", *listed)
    forget_loaded(monkeypatch)
    (tmp_path / "set/x").rename(tmp_path / "set/y")  # then the first class alone is a folder's
    assert "is a folder of no known class" in told("data", *listed, code=2)


def test_sites_whose_classes_differ_in_case_are_told(tmp_path: Path, told: Told) -> None:
    """They have no class in common, and the accuracy says nothing of it."""
    for site, names in (("north", ("Cat", "Dog")), ("south", ("cat", "dog"))):
        for colour, name in zip(("red", "green"), names, strict=True):
            paint(tmp_path / site, colour, 10)
            (tmp_path / site / colour).rename(tmp_path / site / name)
    words = f"images.sites={tmp_path / 'north'},{tmp_path / 'south'} images.size=8 model.depth=1"
    at_sites = ["evaluation.on=sites", "data.site_holdout=0.2", "dataset=images"]
    _, message = run(told, tmp_path, *words.split(), *at_sites)
    assert f"{ALIKE} 'Cat' and 'cat', 'Dog' and 'dog' differ" in message
    assert ALIKE in told("data", *words.split(), *at_sites)


def test_a_list_that_real_sites_are_told_is_looked_at_too(tmp_path: Path, told: Told) -> None:
    paint(tmp_path / "own", "red", 4)
    words = ["dataset=images", "images.classes=red,Red,green", "--folder", str(tmp_path / "own")]
    assert f"{ALIKE} 'red' and 'Red' differ" in told("data", *words)
