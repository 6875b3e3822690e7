"""What has been run is found, what broke off is continued, and two comparisons do nothing twice."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from comparing import options_of
from federation import numbers, run
from filelock import FileLock
from places import HELPERS, ROOT
from small import SMALL, Small

from common.code.fingerprint import PACKAGES
from common.config.code_fingerprint import code_fingerprint
from nectar.cli import main
from nectar.comparison import scheduler as scheduling
from nectar.comparison.comparison import Comparison
from nectar.comparison.request import parse
from nectar.comparison.results import Results
from nectar.comparison.scheduler import Scheduler
from nectar.records import identity as identities
from nectar.records.identity import Identity
from nectar.records.run_list import Archive
from server_app.record import Record
from server_app.run_directory import RunDirectory


def compare(tmp_path: Path, *words: str) -> Results:
    """Compare from the records below ``tmp_path/runs``; none may be missing."""
    shared = [f"output-dir={tmp_path / 'runs'}", "rounds=2", *SMALL.split()]
    comparison = Comparison(parse(options_of([*words, *shared])), lambda sentence: None)
    results = comparison.carry_out()
    return results


@pytest.fixture(autouse=True)
def _no_children(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Fail where a run would be started that should have been found."""
    if "extended" not in request.keywords:
        monkeypatch.setattr(scheduling, "_start", None)


@pytest.mark.extended
def test_records_are_found_and_become_the_table(small: Small, tmp_path: Path) -> None:
    records = [run(small(seed=seed)) for seed in (0, 1)]
    other = [run(small(method="real", set="real.redraw=on", seed=seed)) for seed in (0, 1)]
    words = ("feddm", "afresh=real:redraw=on", "--seeds=2", f"--output={tmp_path / 'out'}")
    results = compare(tmp_path, *words)
    finals = [r.metrics()[2]["test"]["accuracy"] for r in [*records, *other]]
    assert list(results.by_run["final"]) == finals
    with (tmp_path / "out" / "table.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["record"] for line in lines] == [str(r.directory) for r in [*records, *other]]
    assert [line["method"] for line in lines] == ["feddm", "feddm", "real", "real"]
    up = sum(n for m in records[1].metrics() for n in m["bytes"]["up"].values())
    assert (lines[1]["bytes_up"], lines[1]["seconds_devices"]) == (str(up), "")
    asked = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert asked["configurations"]["afresh"]["real"]["redraw"] is True
    for name in ("accuracy-rounds", "accuracy-bytes"):
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "afresh" in (tmp_path / "out" / f"{name}.svg").read_text()
    before = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    compare(tmp_path, *words)
    assert before == {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}


def test_another_source_configuration_or_data_is_another_run(small: Small) -> None:
    record = run(small())
    archive = Archive(record.directory.parent)
    provenance = json.loads((record.directory / "provenance.json").read_text())
    data = (("", provenance["data"]["sha256"]),)
    mine = Identity(provenance["configuration"], provenance["code"], data)
    assert archive.completed(mine).directory == record.directory  # type: ignore[union-attr]
    assert archive.completed(mine, alone=True) is None
    for other in (
        Identity("0", mine.code, mine.data),
        Identity(mine.configuration, "0", mine.data),
        Identity(mine.configuration, mine.code, (("", "0"),)),
    ):
        assert archive.completed(other) is None


@pytest.mark.extended
def test_what_another_comparison_runs_is_waited_for(small: Small, tmp_path: Path) -> None:
    """The lock is held elsewhere; when it is let go the record is there, and nothing is started."""
    record = run(small())
    record.note(outcome="running")
    words = ["feddm", f"output-dir={tmp_path / 'runs'}", "rounds=2", "--seeds=1", *SMALL.split()]
    comparison = Comparison(parse(options_of(words)), lambda sentence: None)
    task = comparison.planned[0].runs[0]
    locks = tmp_path / "runs" / scheduling.LOCKS
    locks.mkdir()
    other = FileLock(locks / f"{task.identity.key}.lock", thread_local=False)
    other.acquire()
    message: list[str] = []

    def say(sentence: str) -> None:
        message.append(sentence)
        if "waiting for its record" in sentence:
            record.note(outcome="completed")
            other.release()

    options = options_of([*words, "--jobs=1"])
    Scheduler(tmp_path / "runs", tmp_path / "logs", options, say).carry_out([task])
    assert message[-1].endswith("made by another comparison")


@pytest.mark.extended
def test_a_save_stops_the_rows_whose_code_it_changed_and_no_other(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a comparison goes on, somebody mends one method."""
    app = tmp_path / "app"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, app / package)
    monkeypatch.setattr(identities, "code_fingerprint", partial(code_fingerprint, root=app))
    words = ["topk", "scaffold", f"output-dir={tmp_path / 'runs'}", "rounds=2", "--seeds=1"]
    message: list[str] = []
    comparison = Comparison(parse(options_of([*words, *SMALL.split()])), message.append)
    tasks = comparison.planned[0].runs
    assert [task.identity.has_changed(task.config) for task in tasks] == [False, False]
    with (app / "strategies" / "topk.py").open("a") as file:
        file.write("mended = 1\n")
    begun: list[tuple[str, int]] = []

    def start(starter: Any, task: Any, resume: Any, log: Path, share: int, timed: bool) -> Any:
        begun.append((task.variant.label, share))
        log.write_text("nectar: no such run\n")
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(2)"])

    monkeypatch.setattr(scheduling, "_start", start)
    monkeypatch.setattr(scheduling, "available_cores", lambda: 5)
    options = options_of([*words, "--jobs=2"])
    scheduler = Scheduler(tmp_path / "runs", tmp_path / "logs", options, message.append)
    scheduler.carry_out(tasks)
    assert begun == [("scaffold", 2)], "two at a time on five cores"
    assert (
        "Nectar's source changed meanwhile; run the command again"
        in scheduler.failures["topk, seed 0"]
    )
    assert "no such run" in scheduler.failures["scaffold, seed 0"]


@pytest.mark.extended
def test_a_search_chooses_on_its_own_seeds_by_validation(small: Small, tmp_path: Path) -> None:
    for value in ("0.001", "0.5"):
        run(small(method="fedavg", seed=1000, set=f"fedavg.lr={value}"))
        run(small(method="fedavg", set=f"fedavg.lr={value}"))
    words = ("fedavg", "--seeds=1", "--tune-seeds=1", "--tune", "fedavg.lr=0.001,0.5")
    results = compare(tmp_path, *words)
    (choice,) = results.choices
    by_record = {
        Record(p.parent)._provenance()["run-config"]["set"]: numbers(Record(p.parent))[2]
        for p in (tmp_path / "runs").glob("*/provenance.json")
        if "seed1000" in p.parent.name
    }
    found = {s[0].partition("=")[2]: choice.score(s) for s in choice.trials}
    for settings, line in by_record.items():
        (value,) = (v for v in found if f"fedavg.lr={v}" in settings)
        assert found[value] == line["validation"]["accuracy"]
    best = max(found, key=lambda v: found[v])
    assert choice.best == (f"fedavg.lr={best}",)
    assert choice.edges == [f"fedavg.lr={best}"]


def _start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "nectar.cli", "compare", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{HELPERS}:{os.environ.get('PYTHONPATH', '')}"},
    )


def _records(runs: Path) -> dict[str, dict[str, Any]]:
    found = {}
    for path in sorted(runs.glob("*/provenance.json")):
        found[path.parent.name] = json.loads(path.read_text())
    return found


def _wait(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _running(runs: Path) -> list[int]:
    lines = {p.pid: p.info["cmdline"] or () for p in psutil.process_iter(["cmdline"])}
    return [pid for pid, line in lines.items() if f"output-dir={runs}" in line]


@pytest.mark.extended
@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_killed_in_the_middle_it_repeats_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: signal.Signals
) -> None:
    """The second run's devices stay in round 3 until both the comparison and that run have been ended."""
    runs, gate = tmp_path / "runs", tmp_path / "gate"
    gate.mkdir()
    odd = f"r=misbehaving_client:METHOD:does=stay,at=3,folder={gate},epochs=1"
    words = ("fedavg", odd, f"output-dir={runs}", "rounds=4", "--seeds=1", "--jobs=1")
    words = (*words, *SMALL.split())
    keys = {"method": "fedavg", "rounds": 4, "output-dir": str(runs), "set": SMALL}
    done = run(keys).directory.name

    first = _start(*words)
    _wait((gate / "there").exists, first)
    first.send_signal(how)
    message = first.communicate()[0]
    assert first.returncode == (-how if how == signal.SIGKILL else 128 + how)
    deadline = time.monotonic() + 300
    while _running(runs) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _running(runs) == []
    left = _records(runs)
    # A process that was killed loses its words before its locks.
    while any(RunDirectory(runs / n).is_written() for n in left) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [p["outcome"] == "completed" for p in left.values()] == [True, False]
    if how == signal.SIGTERM:
        assert "Repeat the command to continue" in message
        assert [p["outcome"] for p in left.values()] == ["completed", "interrupted"]
    before = {p: p.stat().st_mtime_ns for p in (runs / done).rglob("*")}

    (gate / "go").touch()
    capsys.readouterr()
    assert main(["compare", *words]) == 0
    message = capsys.readouterr().out
    assert "2 runs: 1 cached, 1 to do" in message
    assert ", continued" in message
    after = _records(runs)
    assert list(after) == list(left)
    assert {p: p.stat().st_mtime_ns for p in (runs / done).rglob("*")} == before
    name = next(n for n in after if n != done)
    broken = after[name]
    assert broken["outcome"] == "completed"
    assert len(broken["continued"]) == 1
    assert broken["alone"] is False
    assert broken["command"] == ["nectar", "compare", *words]
    assert [m["round"] for m in Record(runs / name).metrics()] == list(range(5))
