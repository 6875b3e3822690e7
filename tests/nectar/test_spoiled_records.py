"""What anybody can do to a record's files: list, report, resume and export say so in a sentence or do without."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from federation import numbers, run
from places import ROOT
from small import SMALL

from common.config.loading import load
from common.errors import FederationError
from nectar import cli
from nectar.records.outputs import with_recorded
from server_app.record import Record

pytestmark = pytest.mark.usefixtures("patience")

Spoil = Callable[[Path], None]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    keys = {"output-dir": str(tmp_path_factory.mktemp("whole")), "rounds": 2, "method": "fedavg"}
    return run({**keys, "set": SMALL}).directory


@pytest.fixture
def record(recorded: Path, tmp_path: Path) -> Path:
    return shutil.copytree(recorded, tmp_path / "runs" / recorded.name)


def typed(*words: str) -> int:
    """Type a command; only an exit code may come of it."""
    try:
        return cli.main(list(words))
    except Exception as error:
        pytest.fail(f"{words}: {error!r}")


def last_line(record: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = record / "metrics.jsonl"
    *before, last = path.read_text().splitlines()
    line = json.loads(last)
    change(line)
    path.write_text("".join(f"{text}\n" for text in [*before, json.dumps(line)]))


def accuracy(value: Any) -> Spoil:
    return lambda record: last_line(record, lambda line: line["test"].update(accuracy=value))


def notes(value: Any) -> Spoil:
    return lambda record: last_line(record, lambda line: line.update(notes=value))


def pipe(name: str) -> Spoil:
    def spoil(record: Path) -> None:
        (record / name).unlink(missing_ok=True)
        os.mkfifo(record / name)

    return spoil


def in_json(name: str, key: str, value: Any) -> Spoil:
    def spoil(record: Path) -> None:
        content = json.loads((record / name).read_text())
        content[key] = value
        (record / name).write_text(json.dumps(content))

    return spoil


SPOILED: dict[str, Spoil] = {
    "a huge accuracy": accuracy(10**400),
    "a pipe as the figures": pipe("metrics.jsonl"),
    "a pipe as the provenance": pipe("provenance.json"),
    "a pipe as the lock": pipe(".writer.lock"),
    "notes as a list": notes(["a"]),
    "charges as a number": notes({"spent": {"a": 3}}),
}
#: what report and resume do without
UNREAD = {"a pipe as the lock"}


@pytest.mark.sweep
@pytest.mark.parametrize("how", SPOILED)
def test_nothing_ends_in_a_traceback_or_hangs(
    how: str, record: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = shutil.copytree(record, record.with_name("20260101-000000-another"))
    in_json("provenance.json", "outcome", "running")(record)  # then its lock is asked for, too
    SPOILED[how](record)
    where = f"output-dir={record.parent}"
    assert typed("runs", where) == 0
    listed = capfd.readouterr().out
    assert whole.name in listed
    assert (record.name in listed) == ("provenance" not in how)
    for words, harmless in (
        (["report", str(record)], UNREAD),
        (["run", f"resume={record}", "rounds=2"], UNREAD),
    ):
        assert typed(*words) == (0 if how in harmless else 2)
        assert "Traceback" not in capfd.readouterr().err
    if "notes" in how or "accuracy" in how:
        assert typed("report", str(record)) == 2
        message = capfd.readouterr().err
        assert str(record / "metrics.jsonl") in message
        assert message.count("\n") == 1


# ---- edited figures --------------------------------------------------------------------------------------


EDITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "the accuracy": lambda line: line["test"].update(accuracy=0.99),
    "a loss": lambda line: line["test"].update(loss=0.1),
    "who took part": lambda line: line["accepted"].append("another"),
    "bytes": lambda line: line["bytes"]["up"].update({"partition-0": 1}),
    "a key more": lambda line: line.update(remark="better"),
}


@pytest.mark.sweep
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("how", EDITS)
def test_edited_figures_are_not_gone_on_from(
    how: str, number: int, record: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = record / "metrics.jsonl"
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    EDITS[how](lines[number])
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    before = path.read_bytes()
    assert typed("run", f"resume={record}", "rounds=3") == 2
    message = capfd.readouterr().err
    assert f"the figures in {path} are not those with which the checkpoint was written" in message
    assert "the record was not changed" in message
    assert path.read_bytes() == before


def unsigned(record: Path) -> None:
    """Leave the checkpoint as an earlier release wrote it."""
    from common.storage import tensor_file

    path = record / "checkpoint" / "last.safetensors"
    tensors, meta = tensor_file.load(path)
    del meta["lines"]
    tensor_file.save(path, tensors, meta)


@pytest.mark.sweep
@pytest.mark.parametrize("kept", ["as it is", "in another layout", "by an earlier release"])
def test_the_figures_as_they_were_are_gone_on_from(kept: str, record: Path, tmp_path: Path) -> None:
    path = record / "metrics.jsonl"
    if kept == "in another layout":
        lines = [json.loads(text) for text in path.read_text().splitlines()]
        path.write_text("".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines))
    if kept == "by an earlier release":
        unsigned(record)
        path.write_text(path.read_text().replace('"accuracy": 0.', '"accuracy": 0.0', 1))
    assert typed("run", f"resume={record}", "rounds=3") == 0
    unbroken = {"output-dir": str(tmp_path / "whole"), "rounds": 3, "method": "fedavg"}
    whole = run({**unbroken, "set": SMALL})
    assert numbers(Record(record))[1:] == numbers(whole)[1:]
    assert typed("run", f"resume={record}", "rounds=4") == 0


@pytest.mark.extended
@pytest.mark.parametrize("every", [1, 2])
def test_rounds_that_the_sites_judge_are_gone_on_from(every: int, tmp_path: Path) -> None:
    keys = {"output-dir": str(tmp_path), "rounds": 3, "method": "fedavg"}
    judged = f"evaluation.on=sites data.site_holdout=0.2 evaluation.every={every}"
    record = run({**keys, "set": f"{SMALL} {judged}"}).directory
    again = shutil.copytree(record, tmp_path / "again")
    assert typed("run", f"resume={record}", "rounds=5") == 0
    assert typed("run", f"resume={record}", "rounds=6") == 0
    lines = (again / "metrics.jsonl").read_text().splitlines()
    edited = [
        lines[0],
        lines[1].replace('"round": 1,', '"round": 1, "remark": "better",'),
        *lines[2:],
    ]
    (again / "metrics.jsonl").write_text("".join(f"{text}\n" for text in edited))
    assert typed("run", f"resume={again}", "rounds=5") == 2
    whole = run({**keys, "rounds": 6, "set": f"{SMALL} {judged}"})
    assert Record(record).metrics()[-1]["sites"] == whole.metrics()[-1]["sites"]


# ---- a full disk, and what a run that ended leaves ----------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize("size", [3_000, 8_000])
def test_an_export_on_a_full_disk_is_a_sentence(
    size: int,
    record: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        code = typed("export", str(record), "--output", str(tmp_path / "model"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    message = capfd.readouterr().err
    assert code == 2
    assert "cannot be written (File too large)" in message
    assert message.count("\n") == 1
    assert not (tmp_path / "model").exists()
    assert not [p for p in tmp_path.rglob("*") if p.name.endswith(".tmp")]


@pytest.mark.parametrize(
    ("error", "raises"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt),
        (OSError(28, "No space left on device"), FederationError),
        (SystemExit(), SystemExit),
    ],
)
def test_a_run_that_ends_while_it_makes_its_record_leaves_nothing(
    error: BaseException,
    raises: type[BaseException],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ends(*_: object) -> None:
        raise error

    monkeypatch.setattr("server_app.record._provenance", ends)
    with pytest.raises(raises):
        Record.create(load({"method": "fedavg", "output-dir": str(tmp_path / "runs")}))
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.extended
def test_what_a_killed_run_left_is_swept(record: Path) -> None:
    """One that died a moment ago is known by its writer's note, whose lock nobody holds."""
    words = ["run", "fedavg", f"output-dir={record.parent}", "rounds=1"]
    code = (
        "import os, signal, sys\nimport server_app.record as record\nfrom nectar import cli\n"
        "record._provenance = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"cli.main({words!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = record.parent.glob(".begun-*")
    young = record.parent / ".begun-without-a-note"
    young.mkdir()
    busy = Record(record.parent / ".begun-by-another")
    busy.directory.mkdir()
    busy.begin_writing()
    assert typed("runs", "--remove", record.name, "--yes", f"output-dir={record.parent}") == 0
    assert not left.exists()
    assert young.exists()
    assert busy.directory.exists()
    os.utime(young, (time.time() - 100,) * 2)
    busy.close()
    Record.create(
        load(with_recorded({"method": "fedavg", "output-dir": str(record.parent)}))
    ).close()
    assert not list(record.parent.glob(".begun-*"))
