"""One command, three engines, the same numbers: this process, Ray, and a real SuperLink with SuperNodes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deployment import Deployment
from federation import SilentGrid, numbers, run, words_of
from frail import until
from places import HELPERS
from small import Small

from common.config.loading import load
from nectar.cli import main as nectar
from nectar.engines.simulation.workspace import marked_processes
from nectar.records.outputs import with_recorded
from server_app.record import Record

pytestmark = pytest.mark.extended

WARM = "feddm.start=noise feddm.warm=on"


def the_record(directory: Path) -> Record:
    (found,) = directory.iterdir()
    return Record(found)


@pytest.mark.long
def test_ray_gives_the_numbers_of_this_process_though_its_server_is_killed_and_leaves_no_token(
    small: Small, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 in round 3 of 4; the wrapper says so, and what continues equals an unbroken run in this process.

    The devices, which remember what SCAFFOLD's do and what their updates fell short by, stay in that round until there
    is a file. Flower's processes have
    their tokens among their words.
    """
    gate = tmp_path / "gate"
    gate.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(HELPERS))
    odd = (
        f"odd.does=stay odd.at=3 odd.folder={gate} odd.epochs=1 compute.workers=2 "
        "wire.weights=int8 wire.error_feedback=on"
    )
    config = small(method="odd_devices:METHOD", rounds=4, set=odd)
    (gate / "go").touch()
    whole = run(config)
    for name in ("there", "go"):
        (gate / name).unlink()
    words = words_of(config | {"output-dir": str(tmp_path / "ray")})
    command = [sys.executable, "-m", "nectar.cli", "simulate", *words]
    with subprocess.Popen(command) as wrapper:
        until((gate / "there").exists, "round 3", while_runs=wrapper)
        record = the_record(tmp_path / "ray")
        (server,) = [p for p in marked_by(wrapper.pid) if "flwr-simulation" in command_line(p)]
        os.kill(server, signal.SIGKILL)
        assert wrapper.wait(400) == 1
    assert len(record.metrics()) == 3
    (gate / "go").touch()
    assert nectar(["simulate", f"resume={record.directory}"]) == 0
    assert numbers(record) == numbers(whole)
    message = capfd.readouterr().out
    provenance = json.loads((record.directory / "provenance.json").read_text())
    assert provenance["command"] == ["nectar", "simulate", *words]
    assert nectar(["report", str(record.directory), "--allow-imports", "odd_devices"]) == 0
    secret = re.compile(rb"[0-9a-f]{65,}|--token|PRIVATE KEY")
    files = [path for path in record.directory.rglob("*") if path.is_file()]
    assert not [path for path in files if secret.search(path.read_bytes())]
    assert secret.search(message.encode()) is None
    assert "nectar-record" not in message  # marked lines are for programs
    assert f"the record is {record.directory}" in message


@pytest.mark.long
def test_images_shared_among_sites_and_what_is_learned_from_them_are_the_same_on_ray(
    small: Small, tmp_path: Path
) -> None:
    words = "fedssyn.source=distilled fedssyn.start_from_images=on fedssyn.inner=scaffold"
    config = small(method="fedssyn", rounds=3, set=f"data.images=200 {words}")
    assert nectar(["simulate", *words_of(config | {"output-dir": str(tmp_path / "ray")})]) == 0
    assert numbers(the_record(tmp_path / "ray")) == numbers(run(config))


def marked_by(wrapper: int) -> list[int]:
    """Return the processes that carry the mark of the simulation that ``wrapper`` started."""
    name = f"nectar-simulation-{wrapper}-"
    return [pid for pid, mark in marked_processes().items() if name in mark]


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


@pytest.mark.long
def test_a_server_that_raises_ends_with_a_failure_and_its_reason(
    small: Small, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = small(set="feddm.image_lr=1e30") | {"output-dir": str(tmp_path / "ray")}
    assert nectar(["simulate", *words_of(config)]) == 1
    message = capfd.readouterr().out
    assert "round 1 has 0 valid replies where federation.min_replies asks for 1" in message
    assert "the device raised FloatingPointError (incident" in message
    record = the_record(tmp_path / "ray")
    assert '"failed: round 1 has 0 valid' in (record.directory / "provenance.json").read_text()


@pytest.mark.long
def test_a_frozen_supernode_is_given_up_at_the_deadline_and_the_round_goes_on(
    small: Small, tmp_path: Path
) -> None:
    """The same outcome, in the same words, as a Grid that withholds the reply in this process."""
    settings = f"{WARM} federation.round_deadline=25 evaluation.on=server"
    config = small(rounds=200, set=settings) | {"output-dir": str(tmp_path / "remote")}
    with Deployment(tmp_path, nodes=3) as federation:
        federation.submit(config)
        record = wait_for(tmp_path / "remote", lambda line: line["round"] == 1)
        federation.stop_node(2)
        wait_for(tmp_path / "remote", frozen)
    lines = numbers(record)
    last = next(line["round"] for line in lines if frozen(line))
    lines = lines[: last + 1]
    # Flower's own heartbeat gives a frozen node up later, between 44 and 67 seconds
    assert lines[last]["rejected"]["partition-2"] == "no reply within 25 s"
    local = numbers(run(small(rounds=last, set=WARM), SilentGrid, silent=[2], from_round=last))
    for there, here in zip(lines, local, strict=True):
        same = ("accepted", "test", "validation", "floats_up", "devices")
        assert {k: there[k] for k in same} == {k: here[k] for k in same}
        for way in ("down", "up"):
            sent = {site: there["bytes"][way][site] for site in there["accepted"]}
            assert sent == {site: here["bytes"][way][site] for site in here["accepted"]}


def frozen(line: dict[str, Any]) -> bool:
    return "partition-2" in line.get("rejected", {})


def wait_for(directory: Path, found: Callable[[dict[str, Any]], bool]) -> Record:
    """Wait for a round's line in the record below ``directory``."""
    end = time.monotonic() + 400
    while time.monotonic() < end:
        records = [Record(d) for d in directory.glob("*")]
        if records and any(map(found, records[0].metrics())):
            return records[0]
        time.sleep(0.2)
    raise TimeoutError("the round was not recorded")


def test_resume_takes_the_recorded_configuration(small: Small) -> None:
    record = run(small(rounds=1, set="feddm.ipc=1"))
    again = load(with_recorded({"resume": str(record.directory), "rounds": 2}))
    assert again.settings.ipc == 1  # type: ignore[attr-defined]
    assert again.rounds == 2
