"""`nectar score`: the exported model's figures on folders of pictures and on test sets."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import run
from PIL import Image
from sklearn.metrics import precision_recall_fscore_support

from common.data.loading import load
from nectar.cli import main
from nectar.confusion import by_class, mistakes
from nectar.export.bundle import export
from nectar.export.inputs import batches, labelled
from nectar.export.model import ExportedModel
from nectar.export.scoring import Score, as_text, score
from nectar.records.record import RunRecord


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learned enough to be right sometimes and wrong sometimes."""
    place = tmp_path_factory.mktemp("score")
    record = run(
        {
            "output-dir": str(place / "runs"),
            "rounds": 1,
            "set": "federation.sites=2 model.width=8 feddm.iterations=5 feddm.ipc=2 feddm.real_batch=32 "
            "image_training.epochs=20",
        }
    )
    return export(RunRecord.open(record.directory), place / "export").folder


@pytest.fixture(scope="module")
def about(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "model.json").read_text())
    return content


def write_digits(to: Path, name: Callable[[int], str] = str) -> Path:
    """Write the digits' test images as PNG files, 0..16 spread over 0..255."""
    test = load("digits", Path()).test
    for index, (image, label) in enumerate(zip(test.images, test.labels, strict=True)):
        place = to / name(int(label)) / f"{index:04d}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.rint(image[0].astype(np.float64) * 255 / 16).astype(np.uint8)
        Image.fromarray(pixels).save(place)
    return to


def figures(capsys: pytest.CaptureFixture[str], json_file: Path, *words: str) -> dict[str, Any]:
    assert main(["score", *words, "--json", str(json_file)]) == 0
    capsys.readouterr()
    content: dict[str, Any] = json.loads(json_file.read_text())
    return content


@pytest.mark.parametrize("name", [str, lambda label: f"{label:02d}-{label}"])
def test_pictures_of_the_test_set_give_the_runs_own_figures(
    folder: Path,
    about: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: Callable[[int], str],
) -> None:
    pictures = write_digits(tmp_path / "test", name)
    scored = figures(capsys, tmp_path / "s.json", str(folder), str(pictures))
    test = about["figures"]["test"]
    assert scored["images"] == 360
    assert scored["accuracy"] == test["accuracy"]
    assert scored["loss"] == pytest.approx(test["loss"], rel=1e-6)
    assert 0.12 < scored["accuracy"] < 0.999


def test_a_known_data_set_gives_the_runs_own_figures(
    folder: Path, about: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scored = figures(capsys, tmp_path / "s.json", str(folder), "dataset=digits")
    test = about["figures"]["test"]
    assert (scored["accuracy"], scored["loss"]) == (test["accuracy"], test["loss"])
    smaller = figures(
        capsys, tmp_path / "s.json", str(folder), "dataset=digits", "evaluation.batch=7"
    )
    assert smaller["confusion"] == scored["confusion"]


def test_pictures_are_put_on_the_data_s_own_steps(folder: Path, tmp_path: Path) -> None:
    """All of 0..16 survive the way through bytes exactly."""
    raw = np.arange(64).reshape(8, 8) % 17
    (tmp_path / "0").mkdir()
    Image.fromarray(np.rint(raw * 255 / 16).astype(np.uint8)).save(tmp_path / "0" / "x.png")
    [given] = labelled(tmp_path, ExportedModel.open(folder), "")
    assert given.values is not None
    assert torch.equal(given.values[0], torch.from_numpy(raw).float())


def test_figures_are_what_they_are_called() -> None:
    """By hand: of 4 a's 3 are right and one is taken for b; of 2 b's one is right; c has no images."""
    made = Score(("a", "b", "c"), 4 / 6, 0.5, ((3, 1, 0), (0, 1, 1), (0, 0, 0)))
    assert made.images == 6
    rows = made.to_dict()["classes"]
    assert [row["images"] for row in rows] == [4, 2, 0]
    assert [row["taken-for"] for row in rows] == [3, 2, 1]
    assert [row["recall"] for row in rows] == [0.75, 0.5, None]
    assert [row["precision"] for row in rows] == [1.0, 0.5, 0.0]
    lines = as_text(made).splitlines()
    assert lines[0] == "accuracy 0.6667, loss 0.5000, 6 images"
    assert "a           4  0.7500     1.0000" in lines
    assert "c           0       -     0.0000" in lines
    assert lines[-3:] == ["a  3  1  .", "b  .  1  1", "c  .  .  ."]


def test_many_classes_show_their_commonest_confusions() -> None:
    confusion = [[5 if i == j else 0 for j in range(30)] for i in range(30)]
    confusion[3][7], confusion[9][1] = 2, 4
    names = tuple(f"kind-{i}" for i in range(30))
    text = as_text(Score(names, 0.9, 0.1, tuple(map(tuple, confusion))))
    assert text.splitlines()[-3:] == [
        "most frequent confusions:",
        "4 of 9 kind-9 taken for kind-1",
        "2 of 7 kind-3 taken for kind-7",
    ]


def test_the_confusion_has_true_classes_in_rows(folder: Path) -> None:
    exported = ExportedModel.open(folder)
    test = load("digits", Path()).test
    raw, labels = torch.from_numpy(test.images.copy()), torch.from_numpy(test.labels.copy())
    made = score(exported, [(raw, labels)], torch.device("cpu"))
    with torch.no_grad():
        taken = exported.network(exported.inputs(raw)).argmax(1)
    expected = np.zeros((10, 10), int)
    np.add.at(expected, (labels.numpy(), taken.numpy()), 1)
    assert np.array_equal(np.array(made.confusion), expected)


def test_files_that_cannot_be_read_are_named_and_counted(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = write_digits(tmp_path / "test")
    whole = (pictures / "3").glob("*.png").__next__()
    (pictures / "3" / "cut.png").write_bytes(whole.read_bytes()[:60])
    (pictures / "4" / "empty.png").write_bytes(b"")
    (pictures / "4" / "notes.txt").write_text("no picture")
    (pictures / ".DS_Store").write_text("")
    assert main(["score", str(folder), str(pictures), "--json", str(tmp_path / "s.json")]) == 0
    message = capsys.readouterr().out
    scored = json.loads((tmp_path / "s.json").read_text())
    assert scored["images"] == 360
    assert "3 inputs were not used" in message
    for name in ("3/cut.png", "4/empty.png", "4/notes.txt"):
        assert name in message
        assert name in {one["path"] for one in scored["skipped"]}


def test_pictures_of_another_size_colour_and_depth_are_read(folder: Path, tmp_path: Path) -> None:
    """A picture of one grey has that grey at any size: 0.5 of the range is 8 of 16."""
    (tmp_path / "0").mkdir()
    Image.new("RGB", (40, 30), (128, 128, 128)).save(tmp_path / "0" / "a.jpg")
    Image.fromarray(np.full((30, 20), 32768, np.uint16)).save(tmp_path / "0" / "b.png")
    found = labelled(tmp_path, ExportedModel.open(folder), "")
    [(images, _)] = batches(found, 8, [])
    assert torch.equal(images, torch.full((2, 1, 8, 8), 8.0))


def test_the_exported_folder_s_code_is_never_run(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An export may come from a stranger: its data are read, its Python files are not."""
    for name in ("model.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "model.py").write_text("raise SystemExit('was run')")
    assert main(["score", str(tmp_path), "dataset=digits"]) == 0
    assert "360 images" in capsys.readouterr().out


def test_a_folder_is_refused_as_a_file_before_any_work(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended in a traceback once all images were scored."""
    assert main(["score", str(folder), "dataset=digits", "--json", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert printed.err == f"nectar: --json={tmp_path} exists: name another file.\n"
    assert not printed.out


@pytest.mark.parametrize(
    ("key", "value"), [("std", [0]), ("std", [float("nan")]), ("mean", [1e999]), ("scale", 0)]
)
def test_constants_that_normalise_nothing_are_a_sentence(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, value: Any
) -> None:
    """It said "loss nan" with exit code 0."""
    odd = shutil.copytree(folder, tmp_path / "odd")
    about = json.loads((odd / "model.json").read_text())
    about["input"][key] = value
    (odd / "model.json").write_text(json.dumps(about))
    assert main(["score", str(odd), "dataset=digits"]) == 2
    message = capsys.readouterr().err
    assert re.search(rf"model.json's input.{key}(.0)? holds", message)
    assert message.count("\n") == 1


def test_figures_by_class_are_those_of_scikit_learn() -> None:
    counts = np.array([[5, 1, 0], [2, 7, 0], [3, 0, 4]])
    true, predicted = (np.repeat(axis.ravel(), counts.ravel()) for axis in np.indices((3, 3)))
    found = by_class(counts.tolist())
    expected = precision_recall_fscore_support(true, predicted)
    for name, values in zip(("precision", "recall", "f1", "images"), expected, strict=True):
        np.testing.assert_allclose(found[name], values)
    assert by_class([[1, 0], [0, 0]])["recall"].isna().tolist() == [False, True]
    assert mistakes(counts.tolist(), 2) == [(2, 0, 3, 7), (1, 0, 2, 9)]
