"""Killed on the way to the disk, wherever that is, a run is continued to the numbers of an unbroken one.

Every step is tried by `NECTAR_ALL_STEPS=1 pytest tests/server_app/test_killed_at_any_write.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from federation import numbers, run, same_end
from places import HELPERS, ROOT
from small import SMALL

from nectar.records.outputs import with_recorded
from nectar.records.run_list import runs_below
from server_app.record import Record

pytestmark = pytest.mark.promise(
    "Records",
    "A run killed at any write goes on to the numbers of an unbroken one",
)


def config(output: Path) -> dict[str, Any]:
    settings = f"{SMALL} feddm.start=noise feddm.warm=on"
    return {"output-dir": str(output), "rounds": 2, "set": settings}


def died_at(jobs: list[dict[str, Any]]) -> list[str]:
    """Carry out the jobs and return what each died at."""
    words = [sys.executable, str(HELPERS / "dying_runs.py")]
    done = subprocess.run(
        words,
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return run(config(tmp_path_factory.mktemp("whole")))


def steps_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many steps a run takes."""
    taken = []
    fsync, replace, rename = os.fsync, Path.replace, Path.rename
    monkeypatch.setattr(os, "fsync", lambda file: (taken.append(1), fsync(file))[1])
    monkeypatch.setattr(Path, "replace", lambda a, b: (taken.append(1), replace(a, b))[1])
    monkeypatch.setattr(Path, "rename", lambda a, b: (taken.append(1), rename(a, b))[1])
    run(config(tmp_path / "counted"))
    monkeypatch.undo()
    return len(taken)


@pytest.mark.extended
def test_it_goes_on_to_the_same_numbers(
    whole: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = steps_of(tmp_path, monkeypatch)
    chosen = range(1, steps + 1) if os.environ.get("NECTAR_ALL_STEPS") else _spread(steps)
    outputs = [tmp_path / f"{step}" for step in chosen]
    jobs = [
        {"config": config(output), "dies": step, "torn": bool(step % 2)}
        for step, output in zip(chosen, outputs, strict=True)
    ]
    deaths = died_at(jobs)
    assert all(deaths)
    for death, output in zip(deaths, outputs, strict=True):
        (there, *others) = [entry.directory for entry in runs_below(output)] or [None]
        assert not others
        begun = list(output.glob(".begun-*"))
        assert bool(begun) == (there is None), death
        for left in begun:  # a minute later the same command finds what was left behind
            os.utime(left, (time.time() - 100,) * 2)
        again = config(output) if there is None else with_recorded({"resume": str(there)})
        continued = run(again)
        assert numbers(continued) == numbers(whole), death
        assert same_end(whole, continued), death
        assert not [p for p in output.rglob("*") if p.name.endswith(".tmp")], death
        assert not list(output.glob(".begun-*")), death


def _spread(steps: int) -> list[int]:
    """Return ten steps over a run, the first ones and the last among them."""
    return sorted({1, 3, 5, *(1 + round(i * (steps - 1) / 7) for i in range(8))})
