"""``nectar runs``: records are listed and filtered; only whole ones of the output directory are removed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.config.loading import load
from nectar.cli import main as nectar
from nectar.records.run_list import runs_below, sweep
from server_app.record import Record


def record(output: Path, method: str, started: str, outcome: str, rounds: int = 2) -> Record:
    made = Record.create(load({"method": method, "rounds": 3, "output-dir": str(output)}))
    for index in range(rounds + 1):
        made.append({"round": index, "test": {"accuracy": index / 10}})
    made.note(outcome=outcome, started=started)
    made.close()
    return made


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def three(output: Path) -> list[Record]:
    return [
        record(output, "feddm", "2026-01-01T00:00:00Z", "completed", 3),
        record(output, "fedavg", "2026-01-03T00:00:00Z", "failed: no room"),
        record(output, "fedavg", "2026-01-02T00:00:00Z", "running"),
    ]


def listed(capsys: pytest.CaptureFixture[str], *words: Any) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert nectar(["runs", *map(str, words), "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_a_run_that_went_on_beyond_its_rounds_asked_for_as_many(
    output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(output, "feddm", "2026-01-01T00:00:00Z", "completed", 4)
    (row,) = listed(capsys, f"output-dir={output}")
    assert (row["done"], row["rounds"]) == (4, 4)


def test_records_are_listed_newest_first_and_nothing_else_is(
    output: Path, three: list[Record], capsys: pytest.CaptureFixture[str]
) -> None:
    (output / "compare-1a2b").mkdir()
    (output / "link").symlink_to(three[0].directory)
    first, failed, killed = three
    where = f"output-dir={output}"
    rows = listed(capsys, where)
    assert [row["id"] for row in rows] == [failed.id, killed.id, first.id]
    assert [row["outcome"] for row in rows] == ["failed", "killed", "completed"]
    assert (rows[2]["done"], rows[2]["rounds"], rows[2]["accuracy"]) == (3, 3, 0.3)
    assert rows[2]["bytes"] == sum(p.stat().st_size for p in first.directory.rglob("*"))
    assert listed(capsys, where, "method=fedavg", "outcome=killed") == [rows[1]]
    assert listed(capsys, where, "seed=1") == []
    killed.begin_writing()
    assert listed(capsys, where, "outcome=running")[0]["id"] == killed.id
    killed.close()
    assert nectar(["runs", where]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["id", "by"]
    assert lines[3].split()[:8] == [
        first.id,
        "python",
        "feddm",
        "digits",
        "0",
        "3/3",
        "0.3000",
        "completed",
    ]


def test_named_records_are_removed_and_no_others(
    output: Path, three: list[Record], capsys: pytest.CaptureFixture[str]
) -> None:
    first, failed, killed = three
    precious = output.parent / "precious"
    precious.write_text("mine")
    (failed.directory / "link").symlink_to(precious)
    words = ["runs", f"output-dir={output}", "--remove", failed.id, str(first.directory)]
    assert nectar(words) == 2, "without a terminal it needs --yes"
    assert "add --yes" in capsys.readouterr().err
    assert len(runs_below(output)) == 3
    assert nectar([*words, "--yes"]) == 0
    assert [path.name for path in output.iterdir()] == [killed.id]
    assert precious.read_text() == "mine"


def test_what_may_not_go_is_refused_and_nothing_goes(
    output: Path, three: list[Record], capsys: pytest.CaptureFixture[str]
) -> None:
    first, _, killed = three
    elsewhere = record(output.parent / "other", "fedavg", "2026-01-01T00:00:00Z", "completed")
    (output / "link").symlink_to(elsewhere.directory)
    (output / "compare-1a2b").mkdir()
    killed.begin_writing()
    for name, message in {
        killed.id: "a run in progress",
        f"../other/{elsewhere.id}": "is not in",
        str(elsewhere.directory): "is not in",
        "..": "is not in",
        ".": "is not in",
        "link": "is not a run's record in",
        "compare-1a2b": "is not a run's record in",
        first.id: "is named twice",
    }.items():
        words = ["runs", f"output-dir={output}", "--remove", first.id, name, "--yes"]
        assert nectar(words) == 2, name
        assert message in capsys.readouterr().err
    killed.close()
    assert len(runs_below(output)) == 3
    assert (elsewhere.directory / "provenance.json").is_file()


def test_a_terminal_is_asked(
    output: Path,
    three: list[Record],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)
    words = ["runs", f"output-dir={output}", "--remove", three[0].id]
    monkeypatch.setattr("builtins.input", lambda question: "n")
    assert nectar(words) == 1
    assert "nothing removed" in capsys.readouterr().out
    monkeypatch.setattr("builtins.input", lambda question: "y")
    assert nectar(words) == 0
    assert three[0].id not in [run.id for run in runs_below(output)]


def test_what_a_killed_removal_left_is_no_record_and_is_swept(output: Path) -> None:
    left = record(output, "fedavg", "2026-01-01T00:00:00Z", "completed")
    left.directory.rename(output / f".removed-{left.id}")
    assert runs_below(output) == []
    sweep(output)
    assert list(output.iterdir()) == []


def test_without_any_record_it_says_so(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert nectar(["runs", f"output-dir={output}"]) == 0
    assert capsys.readouterr().out == f"no such record in {output}\n"
