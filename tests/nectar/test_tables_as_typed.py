"""Tables without names of columns, and settings that are texts: what is typed is what is meant, and no row is lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from data_files import forget_loaded

from nectar import cli

pytestmark = pytest.mark.usefixtures("fresh_data")

SCALED = ["data.scale=minmax", "data.low=0", "data.high=99"]


def rows(n: int = 50) -> list[list[str]]:
    rng = np.random.default_rng(0)
    return [
        [f"{a:.2f}", f"{b:.2f}", str(i % 2)] for i, (a, b) in enumerate(rng.uniform(1, 9, (n, 2)))
    ]


def table(path: Path, lines: Sequence[Sequence[str]], head: str = "") -> str:
    path.write_text("\n".join([*([head] if head else []), *map(",".join, lines)]) + "\n")
    return f"data.file={path}"


def counted(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, int]:
    """Return the numbers of training and test rows that `nectar data` tells."""
    capsys.readouterr()
    assert cli.main(["data", *words, *SCALED, "federation.sites=2"]) == 0
    message = capsys.readouterr().out.splitlines()
    found = {
        line.split()[0]: line.split()[1]
        for line in message
        if line.startswith(("training", "test"))
    }
    return int(found["training"]), int(found["test"])


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert cli.main(["data", *words, *SCALED, "federation.sites=2"]) == 2
    return capsys.readouterr().err


def test_columns_may_be_called_by_their_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As pandas writes a frame without names."""
    file = table(tmp_path / "own.csv", rows(), "0,1,2")
    assert sum(counted(capsys, file, "data.label=2")) == 50


def test_a_row_with_a_name_in_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    lines = [[*row[:2], "ab"[int(row[2])]] for row in rows()]
    file = table(tmp_path / "own.csv", lines)
    assert "if line 1 is a row, set data.header=none" in refused(capsys, file, "data.label=2")
    assert sum(counted(capsys, file, "data.label=2", "data.header=none")) == 50
    caplog.clear()
    assert sum(counted(capsys, file, "data.label=a")) == 49
    assert "line 1: taken for the names of the columns, and most are numbers" in caplog.text


@pytest.mark.parametrize("name", ["1e3", "0", "007", "1.50", "true", "null", "~", "-1", ".5"])
def test_a_columns_name_that_looks_like_something_else_stays_text(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = table(tmp_path / "own.csv", rows(), f"sepal,petal,{name}")
    for typed in (name, f"'{name}'"):
        assert sum(counted(capsys, file, f"data.label={typed}")) == 50


@pytest.mark.sweep
@pytest.mark.parametrize("typed", ["1e3", "0", "true", "null"])
def test_every_text_stays_text_and_comes_back_from_a_record(
    typed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record's settings are read again on resume; what they are is what was typed."""
    file = table(tmp_path / "own.csv", rows(), f"sepal,petal,{typed}")
    words = [file, f"data.label={typed}", *SCALED, f"track.name={typed}", f"track.group={typed}"]
    words += [
        "federation.sites=2",
        "fedavg.epochs=1",
        "rounds=1",
        f"output-dir={tmp_path / 'runs'}",
    ]
    assert cli.main(["run", "fedavg", *words]) == 0
    (record,) = (tmp_path / "runs").glob("[!.]*")
    capsys.readouterr()
    assert cli.main(["config", *words]) == 0
    shown = capsys.readouterr().out
    typed_lines = [line.partition("#")[0].strip() for line in shown.splitlines()]
    for key in ("label", "name", "group"):
        values = [
            line.removeprefix(f"{key}: ") for line in typed_lines if line.startswith(f"{key}:")
        ]
        assert typed in [value.strip("'\"") for value in values]
    assert cli.main(["run", f"resume={record}", "rounds=2"]) == 0
    assert len((record / "metrics.jsonl").read_text().splitlines()) == 3


def test_numbers_are_numbers_still(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "fedavg", "fedavg.lr=1e-1", "images.mean=0.50", "data.low=00"]) == 2
    assert cli.main(["config", "fedavg", "fedavg.lr=1e-1", "data.images=07"]) == 0
    shown = capsys.readouterr().out
    assert "lr: 0.1 " in shown
    assert "images: 7 " in shown


# ---- series -----------------------------------------------------------------------------------------


def waves(path: Path, channels: int, steps: int, *, last: bool, n: int = 60) -> list[str]:
    """Write series that tell two classes apart by their frequency, in the order of axes that is asked for."""
    rng = np.random.default_rng(0)
    kinds, time = np.arange(n) % 2, np.linspace(0, 1, steps)
    base = np.stack([np.sin(2 * np.pi * (1 + 3 * k) * time + rng.uniform()) for k in kinds])
    series = np.stack([base] * channels, 1) + rng.normal(0, 0.1, (n, channels, steps))
    np.savez(path, train_images=series.swapaxes(1, 2) if last else series, train_labels=kinds)
    return [f"data.file={path}", "data.kind=series", "federation.sites=2", "partition.kind=iid"]


ASKED = "are the axes [n, steps, channels]?"


@pytest.mark.sweep
@pytest.mark.parametrize("channels", [9, 3])
def test_series_with_more_channels_than_steps_are_asked_about(
    channels: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """.55 of two classes, and the advice was a lower learning rate; with 3 channels, a flatter model."""
    words = waves(tmp_path / "own.npz", channels, 32, last=True)
    few = ["model.depth=1", "rounds=1", "fedavg.epochs=1", f"output-dir={tmp_path / 'runs'}"]
    for command in (["data"], ["run", "fedavg"]):
        caplog.clear()
        forget_loaded(monkeypatch)
        assert cli.main([*command, *words, *few]) == 0
        assert f"32 channels of {channels} steps: {ASKED}" in caplog.text
    for axes in ("steps_last", "channels_last"):
        caplog.clear()
        assert cli.main(["data", *words, f"data.axes={axes}"]) == 0
        assert ASKED not in caplog.text


@pytest.mark.sweep
@pytest.mark.parametrize("channels", [9, 3])
def test_the_order_that_is_typed_is_the_order_that_is_read(channels: int, tmp_path: Path) -> None:
    more = ["rounds=3", "fedavg.epochs=10", "fedavg.lr=0.1", f"data-dir={tmp_path / 'data'}"]
    figures = []
    for last in (False, True):
        at = tmp_path / ("last" if last else "first")
        at.mkdir()
        words = waves(at / "own.npz", channels, 32, last=last)
        words += ["data.axes=channels_last"] if last else []
        assert cli.main(["run", "fedavg", *words, *more, f"output-dir={at / 'runs'}"]) == 0
        (record,) = (at / "runs").glob("[!.]*")
        lines = map(json.loads, (record / "metrics.jsonl").read_text().splitlines())
        figures.append([line["test"] for line in lines])
    assert figures[0] == figures[1]
    assert figures[1][-1]["accuracy"] == 1.0


def test_series_with_more_steps_than_channels_are_not_asked_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert cli.main(["data", *waves(tmp_path / "own.npz", 3, 32, last=False)]) == 0
    assert ASKED not in caplog.text
