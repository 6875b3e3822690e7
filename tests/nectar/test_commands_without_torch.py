"""What only looks, or refuses, imports no torch, Flower, Ray or pandas; a place that takes no record is told first."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

from common.config.loading import load
from nectar import cli
from server_app.record import Record

HEAVY = ("torch", "flwr", "ray", "pandas")


def modules_after(*words: str) -> tuple[int, list[str], str]:
    """Return a command's exit code, which of the heavy packages it imported, and what it said."""
    code = (
        "import json, sys\nfrom nectar.cli import main\n"
        f"code = main({list(words)!r})\n"
        f"print(json.dumps([code, [n for n in {HEAVY!r} if n in sys.modules]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    *message, last = done.stdout.splitlines()
    returned, heavy = json.loads(last)
    return returned, heavy, "\n".join([*message, done.stderr])


@pytest.fixture
def unfinished(tmp_path: Path) -> Record:
    record = Record.create(load({"method": "fedavg", "output-dir": str(tmp_path / "runs")}))
    record.append({"round": 0, "test": {"accuracy": 0.1}})
    record.close()
    return record


def test_a_list_with_an_unfinished_record(unfinished: Record) -> None:
    where = f"output-dir={unfinished.directory.parent}"
    code, heavy, message = modules_after("runs", where)
    assert (code, heavy) == (0, [])
    assert "killed" in message
    unfinished.begin_writing()
    code, heavy, message = modules_after("runs", where)
    assert (code, heavy) == (0, [])
    assert "running" in message
    code, heavy, message = modules_after("runs", "--remove", unfinished.id, "--yes", where)
    assert (code, heavy) == (2, [])
    assert "is being written by process" in message
    unfinished.close()
    code, heavy, message = modules_after("runs", "--remove", unfinished.id, "--yes", where)
    assert (code, heavy) == (0, [])
    assert not unfinished.directory.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["report", "nothere"], "nothere is not a run's record"),
        (["compare"], "nothing to compare"),
        (["compare", "--grid", "partition.alpha=0.1,1"], "nothing to compare"),
        (["compare", "fedavgg"], "fedavg"),
        (["compare", "table=nothere"], "nothere"),
    ],
)
def test_what_is_refused(words: list[str], said: str) -> None:
    code, heavy, found = modules_after(*words)
    assert (code, heavy) == (2, [])
    assert said in found


@pytest.mark.parametrize("command", ["run", "simulate", "compare"])
def test_a_place_that_takes_no_record_is_refused_before_any_work(
    command: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Root may write anywhere, but neither in /proc nor below a file."""
    for module in ("progress.rehearse", "preflight.starting_weights"):
        monkeypatch.setattr(f"nectar.engines.{module}", None)
    file = tmp_path / "file"
    file.write_text("")
    for place in ("/proc/x", str(file), str(file / "below")):
        assert cli.main([command, "fedavg", f"output-dir={place}"]) == 2
        message = capfd.readouterr().err
        assert f"no record can be made in {place}" in message
        assert "choose another output-dir" in message
        assert message.count("\n") == 1
    assert list(tmp_path.iterdir()) == [file]
