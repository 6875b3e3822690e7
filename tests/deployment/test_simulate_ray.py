"""`nectar simulate` on Ray itself: how it ends, by itself, by a signal, by a kill, and what it leaves."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from federation import numbers
from small import Small
from waiting import until

from nectar.engines.private_folder import private_folder
from nectar.engines.processes import living
from server_app.record import Record

RAISING = """
import torch
from torch import nn


class Raising(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Flatten(), nn.Linear(64, classes))

    def forward(self, images):
        if self.training and torch.is_grad_enabled():
            raise RuntimeError("the site has had enough")
        return super().forward(images)
"""

#: raises in a worker that has imported what only Flower's engine needs
LEAN = """
import sys
import torch
from torch import nn


class Lean(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Flatten(), nn.Linear(64, classes))

    def forward(self, images):
        if self.training and torch.is_grad_enabled() and "sqlalchemy" in sys.modules:
            raise RuntimeError("sqlalchemy has been imported")
        return super().forward(images)
"""

QUICK = ("fedavg", "federation.sites=4", "fedavg.epochs=1", "data.images=200")


@contextlib.contextmanager
def simulation(place: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start the command in a process of its own, its log in ``place/log``."""
    place.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "nectar", "simulate", *QUICK, *words]
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"output-dir={place / 'runs'}"],
            cwd=place,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the command's temporary files go: Ray's sockets need a short name."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def left_in(temporary: Path) -> list[str]:
    """Name what a command left: Ray's processes, which name its folder or work there, and the folder."""
    found = []
    for process in living():
        with contextlib.suppress(psutil.Error):
            found += [" ".join(process.cmdline())] * (str(temporary) in " ".join(process.cmdline()))
    return found + [str(path) for path in temporary.glob("nectar-ray-*")]


def outcome(place: Path) -> str:
    (provenance,) = (place / "runs").glob("[!.]*/provenance.json")
    return str(json.loads(provenance.read_text())["outcome"])


def log(place: Path) -> str:
    return (place / "log").read_text()


@pytest.mark.extended
def test_a_run_has_the_numbers_of_this_process_and_leaves_nothing(
    small: Small, tmp_path: Path, temporary: Path
) -> None:
    (tmp_path / "lean.py").write_text(LEAN)
    with simulation(tmp_path, "rounds=2", "model.name=lean:Lean") as process:
        assert process.wait(400) == 0, log(tmp_path)
    assert left_in(temporary) == []
    said = log(tmp_path)
    assert "round 2/2: accuracy" in said
    assert "to see it: `nectar report" in said
    for idle in ("DEPRECATED", "FutureWarning", "Manually terminating", "ClientAppActor"):
        assert idle not in said
    here = tmp_path / "here"
    words = ["run", *QUICK, "rounds=2", "model.name=lean:Lean", f"output-dir={here}"]
    command = [sys.executable, "-m", "nectar", *words]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    assert numbers(_only(tmp_path / "runs")) == numbers(_only(here))


@pytest.mark.extended
def test_a_run_that_stops_says_why_and_leaves_nothing(tmp_path: Path, temporary: Path) -> None:
    (tmp_path / "raising.py").write_text(RAISING)
    with simulation(tmp_path, "model.name=raising:Raising", "rounds=2") as process:
        assert process.wait(400) == 2, log(tmp_path)
    assert "site failed: RuntimeError" in log(tmp_path)
    assert outcome(tmp_path).startswith("failed: ")
    assert left_in(temporary) == []


@pytest.mark.long
@pytest.mark.extended
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_so_and_leaves_nothing(
    tmp_path: Path, temporary: Path, number: signal.Signals
) -> None:
    with simulation(tmp_path, "rounds=1000") as process:
        until(lambda: "round 1/" in log(tmp_path), 400)
        assert left_in(temporary), "this test would not see what is left"
        process.send_signal(number)
        assert process.wait(120) == 128 + number
    assert outcome(tmp_path) == "interrupted"
    assert f"Interrupted ({number.name})." in log(tmp_path)
    assert left_in(temporary) == []


@pytest.mark.extended
def test_a_run_that_is_ended_while_ray_starts_leaves_nothing(
    tmp_path: Path, temporary: Path
) -> None:
    with simulation(tmp_path, "rounds=1000") as process:
        until(lambda: bool(left_in(temporary)), 400)
        process.terminate()
        assert process.wait(120) == 128 + signal.SIGTERM
    assert left_in(temporary) == []


@pytest.mark.long
@pytest.mark.extended
def test_ray_ends_with_a_command_that_is_killed_and_its_folder_with_the_next(
    tmp_path: Path, temporary: Path
) -> None:
    with simulation(tmp_path, "rounds=1000") as process:
        until(lambda: "round 1/" in log(tmp_path), 400)
        process.kill()
        process.wait()
    until(lambda: not [each for each in left_in(temporary) if " " in each], 60)
    with private_folder("nectar-ray-", temporary):
        pass
    assert left_in(temporary) == []


def _only(place: Path) -> Record:
    (metrics,) = place.glob("[!.]*/metrics.jsonl")
    return Record(metrics.parent)
