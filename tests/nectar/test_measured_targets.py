"""A measured target is refused before it is trained as classes; numbers that are classes pass."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nectar import cli

pytestmark = pytest.mark.usefixtures("fresh_data")

QUICK = ["federation.sites=2", "partition.kind=iid", "fedavg.epochs=1", "rounds=1"]
REFUSED = "its labels look like a measurement, not like classes"


def table(path: Path, labels: Sequence[object]) -> list[str]:
    rows = [f"{i % 7},{i % 5},{label}" for i, label in enumerate(labels)]
    path.write_text("\n".join(["a,b,target", *rows]) + "\n")
    return [f"data.file={path}", "data.label=target"]


def arrays(path: Path, labels: Any, **more: Any) -> list[str]:
    rows = np.random.default_rng(0).normal(size=(len(labels), 4))
    np.savez(path, train_images=rows, train_labels=labels, **more)
    return [f"data.file={path}", "data.kind=table"]


def run(at: Path, *words: str) -> list[str]:
    """Run what the words say, and return the classes on record."""
    assert cli.main(["run", "fedavg", *QUICK, *words, f"output-dir={at / 'runs'}"]) == 0
    (record,) = (at / "runs").glob("[!.]*")
    found: list[str] = json.loads((record / "partition.json").read_text())["classes"]
    return found


def spread(values: int, rows: int) -> list[int]:
    """Return as many different numbers in so many rows, as a measurement has them."""
    return [25 + i % values for i in range(rows)]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("labels", "why"),
    [
        (spread(214, 442), "214 different numbers in 442 rows"),  # scikit-learn's diabetes
        ([10000 + i % 60 for i in range(120)], "60 different numbers in 120 rows"),  # zip codes
        ([i % 3 + 0.5 for i in range(60)], "numbers with a fraction"),
        ([*"ab" * 20, "0.25"], "numbers with a fraction"),
        ([f"2024-01-{1 + i % 9:02d}" for i in range(60)], "dates"),
        ([f"{1 + i % 9}.3.2024 12:30" for i in range(60)], "dates"),
        (["unknown", *(f"2024-01-{1 + i % 9:02d}" for i in range(59))], "dates"),
        ([f"{i % 40}%" for i in range(60)], "40 different values in 60 rows"),
    ],
    ids=[
        *("diabetes", "zip codes", "fractions", "one fraction", "dates", "times"),
        *("dates and unknown", "percentages"),
    ],
)
def test_a_measured_target_is_refused_and_taken_where_that_is_typed(
    labels: Sequence[object], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = table(tmp_path / "own.csv", labels)
    for command in (["data"], ["run", "fedavg"]):
        capsys.readouterr()
        assert cli.main([*command, *QUICK, *words, f"output-dir={tmp_path / 'runs'}"]) == 2
        message = capsys.readouterr().err
        assert f"own.csv: {REFUSED} ({why}): name another column (data.label)" in message
        assert "data.classes=labels" in message
    assert not (tmp_path / "runs").exists()
    assert len(run(tmp_path, *words, "data.classes=labels")) == len({*map(str, labels)})


@pytest.mark.sweep
@pytest.mark.parametrize(
    "labels",
    [
        spread(60, 10_000),  # ages
        [float(i % 3) for i in range(60)],
        [i % 20 for i in range(60)],
        [f"kind {i % 30}" for i in range(60)],
        [*"12" * 20, *"ab" * 20],
    ],
    ids=["ages", "whole floats", "twenty numbers", "texts", "numbers and texts"],
)
def test_what_may_be_classes_passes(labels: Sequence[object], tmp_path: Path) -> None:
    assert len(run(tmp_path, *table(tmp_path / "own.csv", labels))) == len({*map(str, labels)})


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (np.arange(60) % 3, ["0", "1", "2"]),
        (np.arange(60) % 3 + 1, ["1", "2", "3"]),
        (np.array([0, 1, 2, 999])[np.arange(60) % 4], ["0", "1", "2", "999"]),
        ((np.arange(60) % 3).astype(float), ["0", "1", "2"]),
    ],
    ids=["from 0", "from 1", "with a gap", "whole floats"],
)
def test_labels_of_a_file_are_coded_as_a_tables_are(
    labels: Any, classes: list[str], tmp_path: Path
) -> None:
    """1 to 3 made four classes, and 0, 1, 2, 999 a thousand."""
    assert run(tmp_path, *arrays(tmp_path / "own.npz", labels)) == classes


def test_labels_count_into_classes_that_are_named(tmp_path: Path) -> None:
    labels = np.array([1, 3])[np.arange(60) % 2]
    words = arrays(tmp_path / "own.npz", labels)
    assert run(tmp_path / "typed", *words, "images.classes=a,b,c,d") == ["a", "b", "c", "d"]
    words = arrays(tmp_path / "named.npz", labels, classes=["a", "b", "c", "d"])
    assert run(tmp_path / "named", *words) == ["a", "b", "c", "d"]
