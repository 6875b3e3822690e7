"""How the runs of a comparison start: forked from a process that has imported what they need, or alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from federation import numbers, words_of
from small import SMALL

from nectar.comparison.live_processes import command_lines, is_run, others
from nectar.comparison.run_start import FORK_SERVER, RunStarter, Started, start_alone
from server_app.record import Record

pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="forks are Linux's"),
]


def words(runs: Path, **keys: object) -> list[str]:
    """Return a small run's words."""
    return words_of({"method": "topk", "rounds": 1, "output-dir": runs, "set": SMALL, **keys})


def ended(process: Started) -> int:
    """Return its exit code when it has one."""
    deadline = time.monotonic() + 300
    while (code := process.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return code


def record_in(runs: Path) -> Record:
    """Return the one record there."""
    (directory,) = (path for path in runs.iterdir() if (path / "metrics.jsonl").is_file())
    return Record(directory)


def words_shown(pid: int) -> tuple[str, ...]:
    """Return what a list of processes shows of a fork, which has its server's words for a moment."""
    deadline = time.monotonic() + 60
    while FORK_SERVER in (line := command_lines()[pid]):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return line


def servers() -> list[int]:
    """Return the fork servers of this process."""
    return [
        pid
        for pid, line in command_lines().items()
        if FORK_SERVER in line and str(os.getpid()) in line
    ]


def test_a_fork_gives_the_numbers_of_a_process_of_its_own(tmp_path: Path) -> None:
    """Its log, its exit code and what a list of processes shows of it are those too: both stay until that was read."""
    gate = tmp_path / "gate"
    gate.mkdir()

    def staying(name: str) -> list[str]:
        odd = f"odd.does=stay odd.folder={gate} odd.epochs=1"
        return words(tmp_path / name, method="odd_devices:METHOD", set=f"{SMALL} {odd}")

    alone = start_alone(staying("alone"), tmp_path / "alone.log", threads=1, cores=1)
    with RunStarter() as starter:
        forked = starter.start(staying("forked"), tmp_path / "forked.log", threads=1, cores=1)
        shown = words_shown(forked.pid)
        (server,) = servers()
        assert shown[:4] == ("python", *command_lines()[alone.pid][1:4])
        assert shown[4:] == (str(server), "run", *staying("forked"))
        assert others({alone.pid})
        (gate / "go").touch()
        assert (ended(forked), ended(alone)) == (0, 0)
        assert not is_run(command_lines()[server])
        assert servers() == [server]
    assert servers() == []
    records = [record_in(tmp_path / name) for name in ("alone", "forked")]
    one, other = (numbers(record) for record in records)
    assert one == other
    stated = [json.loads((r.directory / "provenance.json").read_text()) for r in records]
    assert stated[0]["code"] == stated[1]["code"]
    said = [(tmp_path / f"{name}.log").read_text().splitlines() for name in ("alone", "forked")]
    assert len(said[0]) == len(said[1])


def test_a_fork_that_fails_and_one_that_is_ended_leave_the_next_as_it_is(tmp_path: Path) -> None:
    with RunStarter() as starter:
        bad = starter.start(
            words(tmp_path / "bad", rounds=-1), tmp_path / "bad.log", threads=1, cores=1
        )
        assert ended(bad) == 2
        assert "rounds" in (tmp_path / "bad.log").read_text()
        long = starter.start(
            words(tmp_path / "long", rounds=10_000), tmp_path / "long.log", threads=1, cores=1
        )
        good = starter.start(words(tmp_path / "good"), tmp_path / "good.log", threads=1, cores=1)
        long.send_signal(signal.SIGTERM)
        assert ended(long) not in (0, None)
        assert ended(good) == 0


def test_without_its_server_a_run_counts_as_killed_and_the_next_starts_alone(
    tmp_path: Path,
) -> None:
    with RunStarter() as starter:
        lost = starter.start(
            words(tmp_path / "lost", rounds=10_000), tmp_path / "lost.log", threads=1, cores=1
        )
        os.kill(servers()[0], signal.SIGKILL)
        assert ended(lost) == -signal.SIGKILL
        while lost.pid in command_lines():  # it ends by itself when it sees it
            time.sleep(0.01)
        after = starter.start(words(tmp_path / "after"), tmp_path / "after.log", threads=1, cores=1)
        assert isinstance(after, subprocess.Popen)
        assert ended(after) == 0


LEFT_ALONE = """
import os, sys, time
from pathlib import Path
from nectar.comparison import fork_server
from nectar.engines.forks.request import Request
server = os.getpid()
if not os.fork():
    while os.getppid() == server:
        time.sleep(0.01)
    told, log, *words = sys.argv[1:]
    Path(told).write_text(str(os.getpid()))
    files = [os.open(log, os.O_RDWR | os.O_CREAT) for _ in range(3)]
    request = Request(["run", *words], os.getcwdb(), dict(os.environb), files)
    fork_server.carry_out(server, request)
"""


def test_a_run_whose_server_died_before_it_could_look_ends_at_once(tmp_path: Path) -> None:
    """It took whoever had become its parent for its server, and ran on for ever."""
    told, log = tmp_path / "pid", tmp_path / "log"
    long = words(tmp_path / "lost", rounds=10_000)
    command = [sys.executable, "-c", LEFT_ALONE, str(told), str(log), *long]
    subprocess.run(command, check=True)
    while not (told.exists() and told.read_text()):
        time.sleep(0.01)
    left = int(told.read_text())
    while left in command_lines():
        if log.exists() and log.read_text():
            os.kill(left, signal.SIGKILL)
        time.sleep(0.01)
    assert log.read_text() == ""
