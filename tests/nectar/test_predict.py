"""Predictions of an exported model, and export and score of a model of rows: inputs without a class, some broken."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import run
from PIL import Image

from common.data.loading import load
from nectar.cli import main
from nectar.export.bundle import export
from nectar.export.model import ExportedModel
from nectar.records.record import RunRecord

HEAD = ["input", "class", "score", "problem"]
NAMES = ("age", "income", "smoker")


def rows(path: Path, count: int, seed: int) -> Path:
    """Write people of whom a rule, with noise, makes some ill."""
    draws = np.random.default_rng(seed)
    values = np.stack(
        [draws.uniform(18, 90, count), draws.normal(2e4, 4e3, count), draws.integers(0, 2, count)],
        1,
    )
    ill = values[:, 0] / 90 + values[:, 2] + draws.normal(0, 0.2, count) > 1.1
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*NAMES, "state"])
        writer.writerows(
            [*row, "ill" if bad else "well"] for row, bad in zip(values, ill, strict=True)
        )
    return path


@pytest.fixture(scope="module")
def pictures_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("pictures")
    words = "federation.sites=2 model.width=8"
    record = run({"output-dir": str(place), "method": "fedavg", "rounds": 1, "set": words})
    return export(RunRecord.open(record.directory), place / "export").folder


@pytest.fixture(scope="module")
def rows_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("rows")
    words = (
        f"data.file={rows(place / 'rows.csv', 400, 0)} data.label=state data.scale=minmax data.low=18,0,0 "
        "data.high=90,40000,1 federation.sites=2 partition.alpha=10 fedavg.epochs=5 fedavg.lr=0.1"
    )
    record = run({"output-dir": str(place), "method": "fedavg", "rounds": 2, "set": words})
    return export(RunRecord.open(record.directory), place / "export").folder


def table(text: str) -> list[dict[str, str]]:
    head, *lines = list(csv.reader(text.splitlines()))
    assert head == HEAD
    return [dict(zip(HEAD, line, strict=True)) for line in lines]


def test_every_picture_below_a_folder_has_a_class_and_two_broken_ones_a_problem(
    pictures_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = load("digits", Path()).test
    (tmp_path / "ward" / ".cache").mkdir(parents=True)
    for place in range(48):
        pixels = np.rint(test.images[place][0].astype(np.float64) * 255 / 16).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "ward" / f"{place:02d}.png")
    whole = (tmp_path / "ward" / "00.png").read_bytes()
    (tmp_path / "ward" / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "notes.txt").write_text("no picture")
    (tmp_path / "ward" / ".cache" / "thumb.png").write_bytes(whole)
    assert (
        main(["score", "--predict", str(pictures_model), str(tmp_path), "evaluation.batch=7"]) == 0
    )
    told = capsys.readouterr()
    found = {line["input"]: line for line in table(told.out)}
    assert len(found) == 50
    assert [name for name, line in found.items() if line["problem"]] == [
        "notes.txt",
        "ward/cut.png",
    ]
    assert "48 of 50 inputs have a class; 2 could not be read" in told.err
    exported = ExportedModel.open(pictures_model)
    with torch.no_grad():
        raw = torch.from_numpy(test.images[:48].astype(np.float32))
        scores, labels = exported.network(exported.inputs(raw)).softmax(1).max(1)
    for place in range(48):
        line = found[f"ward/{place:02d}.png"]
        assert line["class"] == exported.classes[labels[place]]
        assert float(line["score"]) == pytest.approx(float(scores[place]), abs=1e-5)


def test_columns_are_found_by_name_and_a_line_without_a_number_is_named(
    rows_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        "id,smoker,age,income",
        "a,1,85,20000",
        "b,0,20,20000",
        "c,?,20,20000",
        "d,1",
        "e,1,900,20000",
    ]
    (tmp_path / "new.csv").write_text("\n".join(lines))
    output = tmp_path / "found.csv"
    assert (
        main(
            [
                "score",
                "--predict",
                str(rows_model),
                str(tmp_path / "new.csv"),
                "--output",
                str(output),
            ]
        )
        == 0
    )
    assert "3 of 5 inputs have a class" in capsys.readouterr().err
    found = table(output.read_text("utf-8"))
    assert [line["class"] for line in found] == ["ill", "well", "", "", "ill"]
    assert found[2]["problem"] == "column 'smoker': not a finite number"
    assert found[3]["problem"] == "2 cells where the first line has 4"
    oldest = 90.0  # beyond its bound an age is the bound
    exported = ExportedModel.open(rows_model)
    with torch.no_grad():
        raw = torch.tensor([[oldest, 20000.0, 1.0]]).view(1, 3, 1, 1)
        assert float(found[4]["score"]) == pytest.approx(
            float(exported.network(exported.inputs(raw)).softmax(1).max()), abs=1e-5
        )
    assert (
        main(
            [
                "score",
                "--predict",
                str(rows_model),
                str(tmp_path / "new.csv"),
                "--output",
                str(output),
            ]
        )
        == 2
    )
    assert "exists: name another file" in capsys.readouterr().err


def test_a_model_of_rows_is_scored_on_a_csv_as_its_run_scored_it(
    rows_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about: dict[str, Any] = json.loads((rows_model / "model.json").read_text())
    file = f"data.file={rows_model.parent / 'rows.csv'}"
    figures = tmp_path / "figures.json"
    assert main(["score", str(rows_model), file, "data.label=state", "--json", str(figures)]) == 0
    scored = json.loads(figures.read_text())
    assert scored["accuracy"] == pytest.approx(about["figures"]["test"]["accuracy"], abs=1e-9)
    other = rows(tmp_path / "other.csv", 300, 1)
    assert (
        main(["score", str(rows_model), str(other), "data.label=state", "--json", str(figures)])
        == 0
    )
    assert json.loads(figures.read_text())["images"] == 300
    assert json.loads(figures.read_text())["accuracy"] > 0.8
    capsys.readouterr()
    assert main(["score", str(rows_model), str(other), "data.label=smoker"]) == 2
    assert "is not one of the model's classes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere"], "there is no"),
        ([], "Missing argument"),
        (["a", "b"], "one folder of images or CSV"),
    ],
)
def test_what_is_missing_is_said(
    words: list[str], told: str, pictures_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["score", "--predict", str(pictures_model), *words]) == 2
    assert told in capsys.readouterr().err


def test_a_csv_without_the_models_columns_or_lines_is_refused(
    rows_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text, told in (("age,smoker\n1,1\n", "'income'"), (",".join(NAMES) + "\n", "no row")):
        (tmp_path / "new.csv").write_text(text)
        assert main(["score", "--predict", str(rows_model), str(tmp_path / "new.csv")]) == 2
        assert told in capsys.readouterr().err


def test_a_description_whose_bounds_do_not_fit_its_columns_is_refused(
    rows_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about = json.loads((rows_model / "model.json").read_text())
    about["input"]["low"] = [0.0]
    (tmp_path / "model.json").write_text(json.dumps(about))
    (tmp_path / "model.safetensors").write_bytes((rows_model / "model.safetensors").read_bytes())
    assert main(["score", "--predict", str(tmp_path), "x.csv"]) == 2
    assert "is not an exported model that can be read" in capsys.readouterr().err
