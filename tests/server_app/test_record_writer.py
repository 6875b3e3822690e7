"""A record has one writer at a time, and who would be the second is told who the first one is."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from federation import run
from small import Small

from common.errors import FederationError
from nectar.cli import main as nectar
from nectar.records.outputs import with_recorded
from nectar.records.record import RunRecord
from server_app.record import Record

pytestmark = pytest.mark.promise(
    "Records",
    "A record has one writer; `nectar runs` says `killed` of a run that died",
)

#: a process that opens a record to write it, says so, and holds it until its input ends
HOLD = """
import sys
from pathlib import Path
from server_app.record import Record
record = Record(Path(sys.argv[1]))
record.begin_writing()
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_elsewhere(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Let another process write the record for as long as this is entered."""
    words = [sys.executable, "-c", HOLD, str(directory)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def contents(directory: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


@pytest.mark.extended
def test_a_second_writer_is_refused_by_the_firsts_process_and_host(
    small: Small, capsys: pytest.CaptureFixture[str]
) -> None:
    record = run(small(method="fedavg", rounds=1))
    more = with_recorded({"resume": str(record.directory), "rounds": 2})
    with held_elsewhere(record.directory) as process:
        before = contents(record.directory)
        writer = f"process {process.pid} on {socket.gethostname()}"
        with pytest.raises(FederationError, match=f"is being written by {writer}"):
            run(more)
        assert contents(record.directory) == before
        assert nectar(["run", f"resume={record.directory}", "rounds=2"]) == 2
        assert writer in capsys.readouterr().err
        output = f"output-dir={record.directory.parent}"
        assert nectar(["runs", output, "--remove", record.id, "--yes"]) == 2
        assert writer in capsys.readouterr().err
        process.kill()
        process.wait()
        continued = run(more)
    assert [line["round"] for line in continued.metrics()] == [0, 1, 2]


def test_running_and_killed_are_told_apart_by_the_lock_alone(small: Small) -> None:
    record = run(small(method="fedavg", rounds=1))
    record.note(outcome="running")
    with held_elsewhere(record.directory):
        listed = RunRecord.find(record.directory)
        assert listed is not None
        assert listed.outcome == "running"
    listed = RunRecord.find(record.directory)
    assert listed is not None
    assert listed.outcome == "killed"


def test_to_look_who_writes_changes_nothing(small: Small) -> None:
    """A record that was copied here, or lies on a disk that can only be read, has no lock and gets none."""
    record = run(small(method="fedavg", rounds=1))
    for left in record.directory.glob(".writer*"):
        left.unlink()
    assert not record.is_written()
    assert not list(record.directory.glob(".writer*"))


@pytest.mark.extended
def test_what_stands_in_the_writers_note_steers_no_terminal(small: Small) -> None:
    record = run(small(method="fedavg", rounds=1))
    for odd in ('{"pid": "\\u001b[2J", "host": ["x"]}', "[]", "\x00", '{"host": "' + "x" * 9999):
        with held_elsewhere(record.directory):
            (record.directory / ".writer.json").write_text(odd)
            with pytest.raises(FederationError) as refused:
                Record(record.directory).begin_writing()
        assert str(refused.value).isprintable()
        assert len(str(refused.value)) < 1000


def test_the_writer_notes_itself(small: Small) -> None:
    record = run(small(method="fedavg", rounds=1))
    note = json.loads((record.directory / ".writer.json").read_text())
    assert note == {"pid": os.getpid(), "host": socket.gethostname()}
