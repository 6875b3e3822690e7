"""Two Ray nodes of this machine, and a run's devices on them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from federation import numbers
from waiting import until

from server_app.record import Record

pytestmark = pytest.mark.long


@pytest.fixture
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start two nodes with a core each; give the address."""
    folder = tmp_path_factory.mktemp("ray")
    variables = os.environ | {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": "240",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *words: str) -> str:
        log = folder / name
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--num-cpus=1", "--block"]
        with log.open("wb") as file:
            started.append(
                subprocess.Popen(
                    [*command, *words],
                    env=variables,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )
            )
        until(lambda: "will now block forever" in log.read_text(), 300)
        return log.read_text()

    try:
        head = ("--head", "--port=0", "--include-dashboard=false", f"--temp-dir=/tmp/{folder.name}")
        message = start("head", *head)
        found = re.search(r"--address='([^']+)'", message)
        assert found, message
        start("second", f"--address={found[1]}")
        yield found[1]
    finally:
        for process in reversed(started):
            end(process)


def end(node: subprocess.Popen[bytes]) -> None:
    """Kill a node with all that it started, by number: `ray stop` would end other people's too."""
    everybody = [psutil.Process(node.pid), *psutil.Process(node.pid).children(recursive=True)]
    for process in everybody:
        if process.is_running():
            process.kill()
    node.wait()


def nectar(*words: str) -> tuple[int, str]:
    """Return the exit code and what was said."""
    command = [sys.executable, "-m", "nectar", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    "method", ["feddm", "scaffold"]
)  # both remember: a device may go to another node
def test_devices_on_two_nodes_give_the_numbers_of_one_process(
    nodes: str, tmp_path: Path, method: str
) -> None:
    words = (method, "rounds=2", "federation.sites=4")
    code, message = nectar("simulate", *words, f"output-dir={tmp_path / 'two'}", "--cluster", nodes)
    assert code == 0, message
    assert nectar("run", *words, f"output-dir={tmp_path / 'one'}")[0] == 0
    assert numbers(only(tmp_path / "two")) == numbers(only(tmp_path / "one"))


def only(place: Path) -> Record:
    """Return the record that lies there."""
    (directory,) = (path.parent for path in place.glob("[!.]*/metrics.jsonl"))
    return Record(directory)
