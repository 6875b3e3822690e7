"""How the runs of a comparison start and end: each by itself."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from federation import words_of
from small import SMALL

from nectar.comparison.run_process import LocalStarter, Started

pytestmark = pytest.mark.extended


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


@pytest.mark.long
def test_one_that_fails_and_one_that_is_ended_leave_the_next_as_it_is(tmp_path: Path) -> None:
    with LocalStarter() as starter:
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
