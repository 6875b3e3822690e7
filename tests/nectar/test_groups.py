"""Rows and pictures that belong together, as those of one patient, are on one side of every division."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_files import forget_loaded
from PIL import Image

from client_app.draws import divided
from common.config.loading import load
from common.division import Division
from nectar.cli import main

PATIENTS, ROWS = 40, 10
PRIVATE = "evaluation.on=none privacy.noise_multiplier=1 privacy.counts=public"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forget_loaded(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NECTAR_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("NECTAR_RUNS", str(tmp_path / "runs"))


def table(path: Path, *, patients: int = PATIENTS) -> str:
    """Write ten nearly equal rows of each patient, whose class is drawn by lot: nothing can be learned of others."""
    draw = random.Random(3)
    lines = ["a,patient,b,c,d,e,f,class"]
    for patient in range(patients):
        centre = [draw.gauss(0, 1) for _ in range(6)]
        label = "sick" if patient % 2 else "well"
        for _ in range(ROWS):
            first, *rest = (f"{value + draw.gauss(0, 0.02):.4f}" for value in centre)
            lines.append(",".join([first, f"p{patient}", *rest, label]))
    path.write_text("\n".join(lines) + "\n")
    return f"data.file={path}"


def division_of(*words: str) -> Division:
    return Division(load({"method": "fedavg", "set": " ".join(words)}))


def last(words: list[str], tmp_path: Path) -> dict[str, Any]:
    assert main([*words, "--note-record", str(tmp_path / "note")]) == 0
    lines = (Path((tmp_path / "note").read_text().strip()) / "metrics.jsonl").read_text()
    found: dict[str, Any] = json.loads(lines.splitlines()[-1])
    return found


def test_in_a_private_run_one_more_row_or_patient_moves_no_other(tmp_path: Path) -> None:
    """Membership is the keyed hash of a patient's name."""
    held = []
    for number, patients in enumerate((PATIENTS, PATIENTS + 1)):
        file = table(tmp_path / f"{number}.csv", patients=patients)
        if number:  # and one more row of a patient that is there
            with (tmp_path / "1.csv").open("a") as more:
                more.write("9,p0,9,9,9,9,9,well\n")
        words = "data.label=class data.group=patient data.site_holdout=0.3 data.test_share=0"
        division = division_of(file, words, PRIVATE)
        groups = division.dataset.train.owners
        assert groups is not None
        kept, out = divided(division, "north", division.dataset, np.arange(len(groups)), b"key")
        assert not set(groups[kept]) & set(groups[out])
        held.append((set(groups[out].tolist()), set(groups.tolist())))
    (before, known), (after, _) = held
    assert 0 < len(before) < PATIENTS
    assert after & known == before


def shares(capsys: pytest.CaptureFixture[str], path: Path, rows: list[str], *words: str) -> Any:
    """Return what `nectar data` says of a table of groups: its rows to learn from and to judge by, and of each site."""
    path.write_text("x,g,class\n" + "\n".join(rows) + "\n")
    given = [f"data.file={path}", "data.label=class", "data.group=g", "data.validation=0", *words]
    assert main(["data", *given]) == 0
    message = capsys.readouterr().out
    parts = [int(re.search(rf"{part} +(\d+) rows", message)[1]) for part in ("training", "test")]  # type: ignore[index]
    return *parts, [int(size) for size in re.findall(r"partition-\d+ +(\d+)", message)]


def test_groups_with_all_classes_are_cut_and_dealt_as_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though no class has most of any, as where each patient does each of four tasks as often."""
    rows = [f"{row % 7},s{row // 24},{row % 4}" for row in range(40 * 24)]
    train, test, sites = shares(
        capsys, tmp_path / "t.csv", rows, "federation.sites=4", "partition.kind=shards"
    )
    assert (train, test, sites) == (768, 192, [192] * 4)
    *_, drawn = shares(capsys, tmp_path / "t.csv", rows, "federation.sites=5")
    assert sum(drawn) == 768
    assert (
        sorted(drawn)[1] > 24
    )  # four sites of one group each, and one of all others, no draw gave


@pytest.mark.parametrize("seed", range(8))
def test_a_group_of_most_of_its_class_is_learned_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    sizes = {"big": 90, "s": 3, "t": 3, "u": 4}
    rows = [f"{row % 7},{name},sick" for name, size in sizes.items() for row in range(size)]
    rows += [f"{row % 7},w{row // 10},well" for row in range(100)]
    _, test, _ = shares(capsys, tmp_path / "t.csv", rows, "federation.sites=2", f"seed={seed}")
    assert 23 <= test <= 30  # of 200 a fifth is asked


def pictures(folder: Path, nested: bool) -> None:
    rng = np.random.default_rng(0)
    for kind in ("cat", "dog"):
        for patient in range(8):
            for view in range(3):
                name = f"p{patient}/v{view}.png" if nested else f"p{patient}_v{view}.png"
                path = folder / kind / name
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(rng.integers(0, 255, (8, 8), np.uint8)).save(path)


@pytest.mark.parametrize(
    ("nested", "group"), [(True, "folder"), (False, "{group}_*"), (False, "p{group}_v*.png")]
)
def test_pictures_of_a_patient(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], nested: bool, group: str
) -> None:
    """A patient has pictures of both classes here, and 6 in all."""
    pictures(tmp_path / "set", nested)
    words = [f"images.folder={tmp_path / 'set'}", "dataset=images", f"images.group={group}"]
    words += ["images.size=8", "partition.kind=iid", "federation.sites=3", "partition.min_size=1"]
    assert main(["data", *words]) == 0
    message = capfd.readouterr().out
    assert re.search(r"training +\d+ images of \d groups, which are never split", message)
    assert "not used  no file" in message
    counts = re.findall(r"^(?:partition-\d|test) +(\d+)", message, re.MULTILINE)
    assert len(counts) == 4
    assert all(int(number) % 6 == 0 for number in counts)


def test_more_sites_than_groups_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = table(tmp_path / "t.csv", patients=6)
    words = [file, "data.label=class", "data.group=patient", "partition.kind=iid"]
    assert main(["data", *words, "federation.sites=6"]) == 2
    number = re.search(r"set federation.sites to (\d) or less", capfd.readouterr().err)
    assert number is not None
    assert main(["data", *words, f"federation.sites={number[1]}"]) == 0


def test_groups_on_both_sides_are_said_loudly(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a folder that brings test/, and of an .npz with train_groups and test_groups."""
    pictures(tmp_path / "set/train", nested=True)
    shutil.copytree(tmp_path / "set/train/cat/p1", tmp_path / "set/test/cat/p1")
    shutil.copytree(tmp_path / "set/train/dog/p7", tmp_path / "set/test/dog/p9")
    words = ["dataset=images", f"images.folder={tmp_path / 'set'}", "images.size=8"]
    words += ["partition.kind=iid", "federation.sites=2"]
    assert main(["data", *words, "images.group=folder"]) == 0
    captured = capfd.readouterr()
    assert "1 of 9 groups are in training and in test" in caplog.text
    # the pictures that were copied are named, whatever the groups are called
    assert "6 test pictures are in training too" in captured.out
    assert (
        f"{tmp_path}/set/test/dog/p9/v0.png is {tmp_path}/set/train/dog/p7/v0.png" in captured.out
    )
    arrays: dict[str, Any] = {
        "train_images": np.zeros((8, 4, 4), np.uint8), "train_labels": np.arange(8) % 2,
        "test_images": np.zeros((2, 4, 4), np.uint8), "test_labels": np.arange(2),
        "train_groups": np.arange(8), "test_groups": np.array([7, 8]),
    }  # fmt: skip
    np.savez(tmp_path / "x.npz", **arrays)
    words = ["data", f"data.file={tmp_path / 'x.npz'}", "federation.sites=2", "partition.kind=iid"]
    for _ in range(2):  # of the file, and of its store
        caplog.clear()
        forget_loaded(monkeypatch)
        assert main([*words, "data.validation=0"]) == 0
        assert "1 of 9 groups are in training and in test" in caplog.text


def test_the_same_pictures_in_training_and_test_are_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """By their files, and not where they are but alike."""
    rng = np.random.default_rng(1)
    for kind in ("a", "b"):
        for number in range(12):
            smooth = Image.fromarray(rng.integers(0, 255, (6, 6), np.uint8)).resize((64, 64))
            for part in ("train", "test") if number < 2 else ("train",):
                path = tmp_path / "set" / part / kind / f"{part}{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                smooth.save(path)
        other = Image.fromarray(rng.integers(0, 255, (6, 6), np.uint8)).resize((64, 64))
        other.save(tmp_path / "set/test" / kind / "other.png")
    words = ["data", "dataset=images", f"images.folder={tmp_path / 'set'}", "images.channels=1"]
    words += ["partition.kind=iid", "federation.sites=2"]
    assert main([*words, "images.size=16"]) == 0
    message = capfd.readouterr().out
    assert "4 test pictures are in training too" in message
    assert f"{tmp_path}/set/test/a/test1.png is {tmp_path}/set/train/a/train1.png" in message
    assert "other.png is" not in message
    for at, site in enumerate(("north", "south")):
        for kind in ("a", "b"):
            (tmp_path / site / kind).mkdir(parents=True)
            for number in range(at, 12, 2):
                name = f"{kind}/train{number}.png"
                shutil.move(tmp_path / "set/train" / name, tmp_path / site / name)
    words += [f"images.sites={tmp_path}/north,{tmp_path}/south", "images.classes=a,b"]
    shutil.rmtree(tmp_path / "set/train")
    assert main([*words, "images.size=16"]) == 0
    message = capfd.readouterr().out
    assert "4 test pictures are in training too" in message
    assert f"{tmp_path}/set/test/a/test1.png is {tmp_path}/south/a/train1.png" in message


@pytest.mark.extended
def test_a_score_of_the_pictures_finds_the_same_division(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures(tmp_path / "set", nested=True)
    words = [f"images.folder={tmp_path / 'set'}", "dataset=images", "images.group=folder"]
    words += ["images.size=8", "model.width=4", "federation.sites=2", "rounds=1"]
    line = last(["run", "fedavg", "fedavg.epochs=1", "partition.min_size=1", *words], tmp_path)
    record = (tmp_path / "note").read_text().strip()
    assert main(["export", record, "--output", str(tmp_path / "out")]) == 0
    score = ["score", str(tmp_path / "out"), str(tmp_path / "set")]
    assert main([*score, "--json", str(tmp_path / "s.json")]) == 0
    found = json.loads((tmp_path / "s.json").read_text())
    assert found["parts"]["held out"]["accuracy"] == pytest.approx(line["test"]["accuracy"])
    assert sum(part["images"] for part in found["parts"].values()) == 48


# ---- at two sites --------------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize("form", ["pictures", "tables"])
@pytest.mark.parametrize("shared", [0, 1, 3])
def test_a_patient_at_two_simulated_sites_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture,
    form: str, shared: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(0)
    own = {site: [f"{site}{i}" for i in range(6 - shared)] for site in ("north", "south")}
    patients = {site: [*names, *(f"both{i}" for i in range(shared))] for site, names in own.items()}
    for site, names in patients.items():
        if form == "tables":
            rows = [f"{n},{rng.normal():.3f},{'ab'[i % 2]}" for i, n in enumerate(names * 4)]
            (tmp_path / f"{site}.csv").write_text("\n".join(["patient,x,kind", *rows, ""]))
            continue
        for place, name in enumerate(names):
            folder = tmp_path / site / "ab"[place % 2]
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(4):
                values = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(values).save(folder / f"{name}_{number}.png")
    words = ["images.classes=a,b", "evaluation.on=sites", "data.site_holdout=0.2"]
    ending = ".csv" if form == "tables" else ""
    places = ",".join(str(tmp_path / f"{site}{ending}") for site in patients)
    if form == "tables":
        words += [f"data.sites={places}", "data.columns=x", "data.label=kind", "data.group=patient"]
    else:
        words += [f"images.sites={places}", "images.size=8", "images.group={group}_*"]
    sentence = f"{shared} of {12 - shared} groups have their name at more than one site"
    assert main(["data", *words]) == 0
    assert (sentence in capfd.readouterr().out) == bool(shared)
    assert main(["run", "fedavg", "fedavg.epochs=1", "rounds=1", "model.width=4", *words]) == 0
    assert (sentence in caplog.text) == bool(shared)
    assert "both0" not in caplog.text
