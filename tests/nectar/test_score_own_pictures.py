"""`nectar score` on the pictures that a run learned from: its split is made again, what it held out is told first."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_folders import COLOURS, paint, paint_split

from nectar.cli import main

pytestmark = pytest.mark.extended

RUN = (
    "method=fedavg", "rounds=1", "federation.sites=2", "partition.alpha=10", "model.width=4", "fedavg.epochs=1",
    "fedavg.batch=8", "data.validation=0.25",
)  # fmt: skip
SEED = 3


@pytest.fixture(scope="module", autouse=True)
def _places(tmp_path_factory: pytest.TempPathFactory) -> Any:
    place = tmp_path_factory.mktemp("places")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        patch.setenv("NECTAR_DATA", str(place))
        patch.setenv("NECTAR_RUNS", str(place / "runs"))
        yield


def exported(place: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[Path, str]:
    """Run on what ``words`` say and export it; return the export and the line that says what comes next."""
    note, to = place / "note", place / "export"
    assert main(["run", *RUN, f"seed={SEED}", "--note-record", str(note), *words]) == 0
    assert main(["export", note.read_text().strip(), "--output", str(to)]) == 0
    message = capsys.readouterr().out
    return to, message.rpartition("next: nectar ")[2].strip()


def figures(place: Path, words: list[str]) -> dict[str, Any]:
    assert main([*words, "--json", str(place / "s.json")]) == 0
    content: dict[str, Any] = json.loads((place / "s.json").read_text())
    return content


def reported(export: Path) -> dict[str, float]:
    about = json.loads((export / "model.json").read_text())
    test: dict[str, float] = about["figures"]["test"]
    return test


@pytest.mark.parametrize("below", [".", "train"])
def test_the_line_that_export_prints_gives_the_figures_of_what_was_held_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], below: str
) -> None:
    """A fifth of 60 pictures is the test split, a quarter of the rest is held back for tuning."""
    for name in COLOURS:
        paint(tmp_path / "set" / below, name, 20)
    words = ["dataset=images", f"images.folder={tmp_path / 'set'}", "images.size=8"]
    export, line = exported(tmp_path, capsys, *words)
    made = figures(tmp_path, shlex.split(line))
    message = capsys.readouterr().out
    test = reported(export)
    assert (made["images"], made["accuracy"]) == (12, test["accuracy"])
    assert made["loss"] == pytest.approx(test["loss"], rel=1e-5)
    assert {name: part["images"] for name, part in made["parts"].items()} == {
        "held out": 12,
        "validation": 12,
        "trained": 36,
    }
    assert message.startswith(f"accuracy {test['accuracy']:.4f}")
    assert message.splitlines()[0].endswith("12 images that the run held out")
    assert "36 training images (not a fair test): accuracy" in message


def test_pictures_that_sites_held_for_validation_are_told_from_those_they_learned_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The figure on them is the run's own, which the sites made."""
    for name in COLOURS:
        paint(tmp_path / "set", name, 20)
    words = ["dataset=images", f"images.folder={tmp_path / 'set'}", "images.size=8"]
    export, line = exported(tmp_path, capsys, *words, "data.validation_at=sites")
    parts = figures(tmp_path, shlex.split(line))["parts"]
    told = json.loads((export / "model.json").read_text())["figures"]["validation"]
    assert parts["validation"]["images"] + parts["trained"]["images"] == 48
    assert parts["validation"]["images"] == pytest.approx(12, abs=1)
    assert parts["validation"]["accuracy"] == pytest.approx(told["accuracy"])
    assert parts["validation"]["loss"] == pytest.approx(told["loss"], rel=1e-5)
    assert parts["trained"]["loss"] != pytest.approx(told["loss"], rel=1e-5)


@pytest.mark.extended
def test_folders_of_a_set_with_a_test_part_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = paint_split(tmp_path / "set", train=20, test=5)
    words = ["dataset=images", f"images.folder={root}", "images.size=8"]
    export, line = exported(tmp_path, capsys, *words)
    assert shlex.split(line)[-1] == str(root / "test")
    made = figures(tmp_path, shlex.split(line))
    assert (made["images"], made["accuracy"]) == (15, reported(export)["accuracy"])
    learned = figures(tmp_path, ["score", str(export), str(root / "train")])
    assert "accuracy" not in learned
    assert learned["parts"]["trained"]["images"] == 45
    assert "accuracy unknown: the run held none of these pictures out" in capsys.readouterr().out


@pytest.mark.extended
def test_other_pictures_are_scored_as_ever_and_what_cannot_be_told_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in COLOURS:
        paint(tmp_path / "set", name, 20)
    words = ["dataset=images", f"images.folder={tmp_path / 'set'}", "images.size=8"]
    _, line = exported(tmp_path, capsys, *words)
    shutil.copy(tmp_path / "set/red/000.png", tmp_path / "set/red/copy.png")
    made = figures(tmp_path, shlex.split(line))
    assert made["images"] == 61
    assert "parts" not in made
    assert "it is unknown whether the model learned from some of them" in capsys.readouterr().out


def test_a_file_that_cannot_be_read_changes_nothing_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in COLOURS:
        paint(tmp_path / "set", name, 20)
    (tmp_path / "set/green/000a.png").write_bytes(b"no picture")
    words = ["dataset=images", f"images.folder={tmp_path / 'set'}", "images.size=8"]
    export, line = exported(tmp_path, capsys, *words)
    made = figures(tmp_path, shlex.split(line))
    assert (made["images"], made["accuracy"]) == (12, reported(export)["accuracy"])
    assert [one["path"] for one in made["skipped"]] == ["green/000a.png"]


def test_arrays_are_divided_by_the_runs_seed_unless_another_is_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 20)
    images = (rng.random((60, 8, 8)) * 120 + labels[:, None, None] * 60).astype(np.uint8)
    np.savez(tmp_path / "mine.npz", train_images=images, train_labels=labels)
    export, line = exported(tmp_path, capsys, f"data.file={tmp_path / 'mine.npz'}", "model.depth=2")
    made = figures(tmp_path, shlex.split(line))
    test = reported(export)
    assert (made["images"], made["accuracy"], made["loss"]) == (12, test["accuracy"], test["loss"])
    assert main([*shlex.split(line), "seed=0"]) == 2
    assert "seed=0 would draw other test pictures than the run's seed=3" in capsys.readouterr().err


def test_an_export_holds_no_hash_of_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four settings and the checksum of the whole set are all that model.json says of the pictures."""
    for name in COLOURS:
        paint(tmp_path / "set", name, 20)
    words = ["dataset=images", f"images.folder={tmp_path / 'set'}", "images.size=8"]
    export, _ = exported(tmp_path, capsys, *words)
    run = json.loads((export / "model.json").read_text())["run"]
    assert run["split"] == {"folder": True, "test_share": 0.2, "validation": 0.25, "images": 0}
    assert run["seed"] == SEED
    assert len(run["data"]) == 64
    told = "".join(path.read_text() for path in export.iterdir() if path.suffix in (".json", ".md"))
    for path in (tmp_path / "set").rglob("*.png"):
        assert hashlib.sha256(path.read_bytes()).hexdigest() not in told
        assert path.name not in told
