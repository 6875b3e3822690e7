"""Comparisons that come to nothing, screens that lack letters, and folders whose names look like settings."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from places import ROOT

from nectar import cli

SMALL = ["rounds=1", "federation.sites=2", "federation.participation=1"]
#: a rate under which the first step's loss is not a number
FAILS = "fedavg:lr=1e38"
WHY = "training diverges where numbers are not finite"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    draws = np.random.default_rng(0)
    for part, count in (("train", 6), ("test", 2)):
        for name in ("日本", "犬"):
            place = tmp_path / "bilder" / part / name
            place.mkdir(parents=True)
            for i in range(count):
                pixels = draws.integers(0, 255, (8, 8), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{i}.png")
    return tmp_path / "bilder"


def pictures(folder: Path) -> list[str]:
    return [
        "dataset=images",
        f"images.folder={folder}",
        "images.size=8",
        "images.channels=1",
        "model.depth=2",
        "partition.kind=iid",
        "partition.min_size=1",
    ]


# ---- every run fails -----------------------------------------------------------------------------------


@pytest.mark.extended
def test_a_comparison_of_which_every_run_fails_says_why(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", FAILS, *SMALL, "--seeds", "1", f"output-dir={tmp_path / 'runs'}"]
    assert cli.main([*words, "data.validation=0.1"]) == 1
    message = capfd.readouterr()
    shown = " ".join(message.out.partition("\n\n")[2].split())
    assert WHY in shown
    assert "Traceback" not in message.out + message.err
    assert not shown.count("Mean accuracy after each round")


# ---- screens that lack letters ---------------------------------------------------------------------------


def typed(words: list[str], tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Type a command in a process whose surroundings are ``variables``."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "PYTHON"))}
    return subprocess.run(
        [sys.executable, "-m", "nectar", *words],
        env={**own, **variables, "PYTHONPATH": str(ROOT), "NECTAR_RUNS": str(tmp_path / "runs")},
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )


POSIX = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.extended
def test_classes_that_the_screen_has_no_letters_for_are_escaped(
    folder: Path, tmp_path: Path
) -> None:
    words = ["data", *pictures(folder), "federation.sites=2"]
    typed(words, tmp_path, PYTHONIOENCODING="cp1252")  # says that it stores the pictures, once
    done = typed(words, tmp_path, PYTHONIOENCODING="cp1252")
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\u65e5\u672c" in done.stdout


@pytest.mark.extended
def test_a_run_goes_through_and_its_record_has_the_names(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "保存"
    words = [
        "run",
        "fedavg",
        *pictures(folder),
        "rounds=1",
        "federation.sites=2",
        f"output-dir={place}",
    ]
    done = typed(words, tmp_path, **POSIX)
    assert done.returncode == 0, done.stderr
    (partition,) = place.glob("*/partition.json")
    assert json.loads(partition.read_text(encoding="utf-8"))["classes"] == ["日本", "犬"]
    assert typed(["runs", f"output-dir={place}"], tmp_path, **POSIX).returncode == 0


# ---- folders whose names look like settings ----------------------------------------------------------------


@pytest.mark.extended
def test_a_word_that_is_a_folder_is_the_folder(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = f"output-dir={tmp_path / 'runs'}"
    within = tmp_path / "split=test"
    shutil.move(folder, within)
    assert (
        cli.main(["run", "fedavg", *pictures(within), "rounds=1", "federation.sites=2", runs]) == 0
    )
    (record,) = (tmp_path / "runs").glob("*-fedavg-*")
    assert cli.main(["export", str(record), "--output", "a=b"]) == 0
    after = capsys.readouterr().out.strip().splitlines()[-1].partition("next: nectar ")[2]
    command, exported, pictured = after.replace("'", "").split()
    assert Path(pictured) == within / "test"
    for place in (pictured, "split=test/test", "split=test"):
        if place == "split=test":  # as it may lie in the folder that one is in
            shutil.move(within / "test", tmp_path / "test")
            shutil.rmtree(within)
            shutil.move(tmp_path / "test", within)
        assert cli.main([command, exported, place]) == 0, capsys.readouterr().err
        assert "accuracy" in capsys.readouterr().out
    assert cli.main(["score", "a=b", "split=nothere"]) == 2
    assert cli.main(["score", "a=b", f"images.classes={'x' * 300}"]) == 2


def test_a_comma_in_a_path_of_a_site_is_named(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("north, ward 3", "south"):
        shutil.copytree(folder / "train", tmp_path / name)
    shape = ["dataset=images", "images.size=8", "images.channels=1", "model.depth=2", "fedavg"]
    listed = tmp_path / "own.yaml"
    listed.write_text(f"images: {{sites: ['{tmp_path}/north, ward 3', '{tmp_path}/south']}}\n")
    for word in (
        [f"images.sites={tmp_path}/north, ward 3,{tmp_path}/south"],
        ["images.sites=south,north, ward 3"],
        ["--config", str(listed)],
    ):
        assert cli.main(["run", *sorted(shape, key=lambda each: "=" in each), *word]) == 2
        message = capsys.readouterr().err
        assert "a comma" in message
        assert "ends a path" in message
        assert message.count("\n") == 1
    (tmp_path / "north").symlink_to(tmp_path / "north, ward 3")
    assert cli.main(["data", *shape[:4], "images.sites=south,north"]) == 0
    long = ",".join("x" * 100 for _ in range(4))
    assert cli.main(["data", *shape[:4], f"images.sites={long}"]) == 2
