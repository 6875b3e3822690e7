"""Two Ray nodes of this machine: a comparison's runs on them, and a run's devices; one of them is killed."""

from __future__ import annotations

import csv
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from federation import numbers
from nectar.engines.simulation.workspace import MARK
from waiting import until

from server_app.record import Record

pytestmark = pytest.mark.long

Nodes = tuple[str, subprocess.Popen[bytes]]


@pytest.fixture
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Start two nodes with a core each; give the address and the second one's process."""
    folder = tmp_path_factory.mktemp("ray")
    variables = os.environ | {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": "240",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        MARK: str(folder),  # by which what they start is found
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
        yield found[1], started[1]
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


def compare(place: Path, *words: str) -> tuple[int, str]:
    """Return the exit code and what was said, of progress once a second."""
    place.mkdir(exist_ok=True)
    often = "from nectar.comparison import scheduler; scheduler._EVERY = 1.0; "
    words = ("compare", *words, f"output-dir={place}", "--output", str(place / "tables"))
    command = [
        sys.executable,
        "-c",
        f"{often}import sys; from nectar.cli import main; sys.exit(main())",
        *words,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def figures(place: Path) -> list[list[str]]:
    """Return what was measured in each round, but for the seconds."""
    with (place / "tables" / "rounds.csv").open(newline="") as file:
        return [row[:8] for row in csv.reader(file)]


def test_the_numbers_are_those_of_this_machine(nodes: Nodes, tmp_path: Path) -> None:
    words = (
        "fedavg:epochs=30",
        "feddm:iterations=30",
        "rounds=3",
        "federation.sites=3",
        "--seeds",
        "2",
    )
    code, message = compare(tmp_path / "ray", *words, "--ray", nodes[0])
    assert code == 0, message
    at_work = re.findall("At work: (.*)[.] . of 4 runs", message)
    assert any(re.search("round [123] of 3", each) for each in at_work), message
    assert all(each.count("round") <= 2 for each in at_work), "a core a node: the others wait"
    assert compare(tmp_path / "here", *words)[0] == 0
    assert figures(tmp_path / "ray") == figures(tmp_path / "here")
    again = compare(tmp_path / "ray", *words)
    assert "4 runs, 4 of them there already" in again[1]


def test_a_lost_node_costs_its_run_alone_and_the_same_command_makes_it(
    nodes: Nodes, tmp_path: Path
) -> None:
    words = ("fedavg:epochs=30", "feddm", "rounds=2", "federation.sites=3", "--seeds", "2")
    address, second = nodes
    killer = threading.Thread(target=kill_when_it_works, args=(second,))
    killer.start()
    code, message = compare(tmp_path, *words, "--ray", address)
    killer.join()
    assert code == 1
    assert message.count("its node was lost: the same command makes it again") >= 1, message
    assert "raylet" not in message, message
    assert message.count("FAILED") == 1, message
    code, message = compare(tmp_path, *words, "--ray", address)
    assert code == 0, message
    assert "4 runs, 3 of them there already" in message


@pytest.mark.parametrize(
    "method", ["feddm", "scaffold"]
)  # both remember: a device may go to another node
def test_devices_on_two_nodes_give_the_numbers_of_one_process(
    nodes: Nodes, tmp_path: Path, method: str
) -> None:
    words = (method, "rounds=2", "federation.sites=4")
    code, message = nectar(
        "simulate", *words, f"output-dir={tmp_path / 'two'}", "--cluster", nodes[0]
    )
    assert code == 0, message
    assert nectar("run", *words, f"output-dir={tmp_path / 'one'}")[0] == 0
    assert numbers(only(tmp_path / "two")) == numbers(only(tmp_path / "one"))


def only(place: Path) -> Record:
    """Return the record that lies there."""
    (directory,) = (path.parent for path in place.glob("[!.]*/metrics.jsonl"))
    return Record(directory)


def kill_when_it_works(node: subprocess.Popen[bytes]) -> None:
    """Kill the node once a run of the comparison computes below it."""

    def below() -> list[psutil.Process]:
        return psutil.Process(node.pid).children(recursive=True)

    until(lambda: any("nectar.comparison.run_process" in " ".join(words(p)) for p in below()), 300)
    os.kill(node.pid, signal.SIGSTOP)  # or it would end its children in order
    for process in below():
        process.kill()
    os.kill(node.pid, signal.SIGKILL)


def words(process: psutil.Process) -> list[str]:
    """Return a process's words; none of one that is gone."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []
