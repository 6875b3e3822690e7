"""The launching of `nectar simulate` against Flower and Ray themselves, with a tiny app."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from nectar.engines.simulation.workspace import marked_processes

from nectar.engines.flower.app import SOURCE

PROJECT = """
[project]
name = "tiny"
version = "0.1.0"
description = "a test's app"
license = "Apache-2.0"
requires-python = ">=3.11"
dependencies = ["flwr"]
[tool.flwr.app]
publisher = "nectar"
fab-include = ["**/*.py"]
[tool.flwr.app.components]
serverapp = "server_app.app:app"
clientapp = "client_app.app:app"
[tool.flwr.app.config]
mode = ""
"""

# The names are those of Nectar's packages: the app that is submitted must be the one that runs.
SERVER = """
import logging, time
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()

@app.main()
def main(grid, context):
    log = logging.getLogger("flwr").info
    log("the test's server")
    if context.run_config["mode"] == "raise":
        raise RuntimeError("the server has had enough")
    while len(list(grid.get_node_ids())) < 4:
        time.sleep(0.1)
    result = FedAvg(fraction_evaluate=0.0, min_train_nodes=4).start(
        grid=grid, initial_arrays=ArrayRecord([np.zeros(3)]), num_rounds=2
    )
    log("arrays %s", result.arrays.to_numpy_ndarrays()[0].tolist())
    while context.run_config["mode"] == "wait":
        time.sleep(0.1)
"""

CLIENT = """
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    arrays = [x + 1 for x in message.content["arrays"].to_numpy_ndarrays()]
    content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=message)
"""

WRAPPER = """
import sys
from pathlib import Path
from nectar.engines.flower.client import Job, Resources
from nectar.engines.simulation.simulate import simulate
resources = Resources(supernodes=4, client_cores=1, client_gpus=0.0, workers=2)
sys.exit(simulate(Job(Path(sys.argv[1]), {"mode": sys.argv[2]}, resources)))
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A Flower app in which four devices add one, twice."""
    root = tmp_path / "the app"
    for package, source in (("server_app", SERVER), ("client_app", CLIENT)):
        (root / package).mkdir(parents=True)
        (root / package / "__init__.py").touch()
        (root / package / "app.py").write_text(source)
    (root / "pyproject.toml").write_text(PROJECT)
    return root


@contextlib.contextmanager
def wrapper(app: Path, mode: str, home: Path) -> "Iterator[subprocess.Popen[str]]":
    """Start the launching in a process of its own, its log in ``home/log``."""
    home.mkdir(exist_ok=True)
    with (home.parent / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", WRAPPER, str(app), mode],
            cwd=SOURCE,
            env={**os.environ, "HOME": str(home)},
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def wait_for(log: Path, text: str, seconds: float = 400.0) -> None:
    deadline = time.monotonic() + seconds
    while text not in log.read_text():
        assert time.monotonic() < deadline, f"{text!r} not in:\n{log.read_text()}"
        time.sleep(0.1)


def leftovers(owner: int) -> list[str]:
    """Name what a wrapper left: processes by their mark, Ray's by their command, directories."""
    name = f"nectar-simulation-{owner}-"
    found = [mark for mark in marked_processes().values() if name in mark]
    for directory in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if directory.name.isdigit() and int(directory.name) != owner:
                texts = [(directory / "cmdline").read_text(), str((directory / "cwd").readlink())]
                found += [text for text in texts if name in text]
    found += [str(path) for path in Path(tempfile.gettempdir()).glob(f"{name}*")]
    return found + [str(path) for path in Path("/tmp").glob(f"{name}*")]


@pytest.mark.extended
def test_a_completed_run_exits_with_0_and_leaves_nothing(app: Path, tmp_path: Path) -> None:
    with wrapper(app, "ok", tmp_path / "home") as process:
        assert process.wait(400) == 0, (tmp_path / "log").read_text()
    message = (tmp_path / "log").read_text()
    assert "the test's server" in message
    assert "arrays [2.0, 2.0, 2.0]" in message
    assert "Starting Flower Simulation" not in message
    assert "FutureWarning" not in message
    assert leftovers(process.pid) == []
    assert list((tmp_path / "home").iterdir()) == []
    # Nor may submitting the app change it.
    assert not list(app.rglob("uv.lock"))


@pytest.mark.extended
def test_a_server_that_raises_is_a_failure_with_its_reason(app: Path, tmp_path: Path) -> None:
    with wrapper(app, "raise", tmp_path / "home") as process:
        assert process.wait(300) == 1
    message = (tmp_path / "log").read_text()
    assert "the server has had enough" in message
    assert "The run did not complete (failed): " in message
    assert leftovers(process.pid) == []


@pytest.mark.long
@pytest.mark.extended
def test_an_interrupted_run_exits_with_130_and_leaves_nothing(app: Path, tmp_path: Path) -> None:
    with wrapper(app, "wait", tmp_path / "home") as process:
        wait_for(tmp_path / "log", "arrays [2.0, 2.0, 2.0]")
        assert leftovers(process.pid), "this test would not see what is left"
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 130
    assert leftovers(process.pid) == []


@pytest.mark.long
@pytest.mark.extended
def test_the_next_start_removes_what_a_killed_wrapper_left(app: Path, tmp_path: Path) -> None:
    with wrapper(app, "wait", tmp_path / "home") as killed:
        wait_for(tmp_path / "log", "arrays [2.0, 2.0, 2.0]")
        killed.kill()
        killed.wait()
        assert leftovers(killed.pid)
    with wrapper(app, "raise", tmp_path / "home") as process:
        wait_for(tmp_path / "log", "Removed what an earlier, killed simulation had left behind.")
        assert leftovers(killed.pid) == []
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 128 + signal.SIGTERM
    assert leftovers(process.pid) == []
