"""A disk without room, or one that can only be read: one sentence on what is safe, and no run that seems to go on."""

from __future__ import annotations

import errno
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from federation import numbers, run
from small import SMALL, Small

from common.errors import FederationError
from nectar.cli import main as nectar
from nectar.records.outputs import with_recorded
from nectar.records.run_list import runs_below
from server_app.record import Record

pytestmark = pytest.mark.promise(
    "Records",
    "A full or read-only disk is one sentence with the last safe round",
)

WARM = "feddm.start=noise feddm.warm=on"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Record:
    keys = {"output-dir": str(tmp_path_factory.mktemp("whole")), "rounds": 2}
    return run({**keys, "set": f"{SMALL} {WARM}"})


@contextmanager
def no_room(monkeypatch: pytest.MonkeyPatch, after: int, times: int) -> Iterator[None]:
    """Let the disk take ``after`` files, then refuse ``times`` of them."""
    left = [after + times]

    def fsync(file: int) -> None:
        left[0] -= 1
        if 0 <= left[0] < times:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        yield


@pytest.mark.sweep
@pytest.mark.parametrize("ever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("after", [0, 1, 3, 6, 12, 18])
def test_a_full_disk_is_a_sentence_and_the_run_can_go_on(
    small: Small, whole: Record, monkeypatch: pytest.MonkeyPatch, after: int, ever: bool
) -> None:
    config = small(set=f"{WARM} federation.min_replies=3")
    output = Path(config["output-dir"])
    with (
        no_room(monkeypatch, after, 10_000 if ever else 1),
        pytest.raises(FederationError) as message,
    ):
        run(config)
    assert "No space left on device" in str(message.value)
    assert "\n" not in str(message.value)
    assert not [p for p in output.rglob("*") if p.name.endswith(".tmp")]
    found = runs_below(output)
    if not found:
        assert "free some space" in str(message.value)
        assert not list(output.iterdir())
        return
    assert found[0].outcome in ("failed", "killed")
    assert ever or found[0].outcome == "failed"
    continued = run(with_recorded({"resume": str(found[0].directory)}))
    assert numbers(continued) == numbers(whole)


def test_what_is_safe_is_said(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(small(method="fedavg", rounds=1))
    more = with_recorded({"resume": str(done.directory), "rounds": 2})
    sentence = (
        f"{done.directory} cannot be written .* all up to round 1 is safe in it; free some space"
    )
    with no_room(monkeypatch, 3, 1), pytest.raises(FederationError, match=sentence):
        run(more)


def test_a_line_is_written_whole_or_not_at_all(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(small(method="fedavg", rounds=1))
    before = done.metrics()
    with no_room(monkeypatch, 0, 1), pytest.raises(OSError, match="No space"):
        done.append({"round": 2})
    done.append({"round": 2, "again": True})
    assert done.metrics() == [*before, {"schema": 2, "round": 2, "again": True}]


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """Let the kernel itself refuse to write more into a file, but not bytecode, which Python would leave cut short."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = before


@pytest.mark.parametrize("size", [200, 3_000, 6_000])
def test_the_command_says_so_and_fails(
    small: Small, size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small(method="fedavg")
    words = [*config["set"].split(), "method=fedavg", f"output-dir={config['output-dir']}"]
    with no_file_larger_than(size):
        code = nectar(["run", *words])
    message = capsys.readouterr().err.splitlines()
    assert code == 2
    assert "File too large" in message[-1]
    assert message[-1].startswith("nectar: ")
    assert not [line for line in message if "Traceback" in line]
    assert all(listed.outcome == "failed" for listed in runs_below(Path(config["output-dir"])))


def test_a_record_that_can_only_be_read_is_not_begun(
    small: Small, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run(small(method="fedavg", rounds=1))
    before = {p: p.read_bytes() for p in done.directory.rglob("*") if p.is_file()}
    os_open = os.open

    def read_only(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY) and str(path).startswith(str(done.directory)):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return os_open(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", read_only)
    assert nectar(["run", f"resume={done.directory}", "rounds=2"]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert f"{done.directory} cannot be written (Read-only file system)" in message
    assert "all up to round 1 is safe in it" in message
    (listed,) = runs_below(done.directory.parent)
    assert listed.outcome == "completed"
    monkeypatch.undo()
    assert {p: p.read_bytes() for p in done.directory.rglob("*") if p.is_file()} == before


def test_a_command_without_room_for_its_own_file_says_so(
    small: Small,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = small(method="fedavg", rounds=1)
    words = [*config["set"].split(), "method=fedavg", f"output-dir={config['output-dir']}"]
    with no_room(monkeypatch, 3, 1):  # behind the first three files of the record
        code = nectar(["run", "rounds=1", *words, "--note-record", str(tmp_path / "note")])
    assert code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message == "nectar: a file cannot be written (No space left on device): free some space."
    assert [listed.outcome for listed in runs_below(Path(config["output-dir"]))] == ["failed"]
