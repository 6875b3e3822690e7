"""A run whose devices work in a pool of processes: the numbers of one process, whatever becomes of the workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
from federation import MissingGrid, numbers, run, same_end
from places import HELPERS, ROOT
from small import Small
from waiting import until

from common.config.loading import load
from nectar.engines.local_run import run_here
from nectar.engines.pool import pool as worker
from server_app.record import Record

pytestmark = pytest.mark.promise(
    "Records",
    "A pool gives the numbers of one process, to the bit; a dead worker costs its site that "
    "round; nothing is left or printed after",
)


def pooled(config: dict[str, Any], **options: Any) -> Record:
    """Run ``config`` in a pool of two; nothing of it may be left at the end."""
    threads, before = threading.active_count(), shared_memory()
    record = run_here(load({**config, "set": f"{config['set']} compute.workers=2"}), **options)
    assert workers_of(os.getpid()) == []
    assert threading.active_count() <= threads
    assert shared_memory() <= before
    return record


def shared_memory() -> set[str]:
    """Return what torch and Python have left in the machine's shared memory; Ray and browsers have theirs there."""
    names = (entry.name for entry in Path("/dev/shm").iterdir())
    return {name for name in names if name.startswith(("torch_", "psm_", "sem."))}


def workers_of(parent: int) -> list[int]:
    """Return the numbers of a process's living workers."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            above = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # gone meanwhile
            continue
        if b"nectar.engines.pool.worker_process" in words and above == parent:
            found.append(int(entry.name))
    return found


def assert_same(one: Record, other: Record) -> None:
    assert numbers(one) == numbers(other)
    assert same_end(one, other)


@pytest.fixture
def odd(small: Small, monkeypatch: pytest.MonkeyPatch) -> Small:
    """Return a maker of run configs of the odd devices' method."""
    monkeypatch.syspath_prepend(str(HELPERS))

    def make(does: str, **keys: Any) -> dict[str, Any]:
        more = keys.pop("set", "")
        return small(
            method="misbehaving_client:METHOD", set=f"odd.epochs=1 odd.does={does} {more}", **keys
        )

    return make


@pytest.mark.extended
def test_it_is_carried_out_by_two_processes_that_keep_their_devices(
    odd: Small, tmp_path: Path
) -> None:
    """In round 1 each device waits until the second process has begun with one."""
    places = tmp_path / "places"
    places.mkdir()
    told: list[tuple[int, int]] = []
    pooled(
        odd("gather", rounds=2, set=f"odd.folder={places} federation.sites=4"),
        progress=lambda done, of: told.append((done, of)),
    )
    assert len(list(places.iterdir())) == 2
    assert str(os.getpid()) not in [place.name for place in places.iterdir()]
    rounds = [(k, 4) for _ in range(2) for k in (1, 2, 3, 4)]
    assert told == rounds  # nobody is asked who is there: the app tells that for all


@pytest.mark.extended
@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("kill", "it was killed by SIGKILL, probably for lack of memory"),
        pytest.param("leave", "it ended with exit code 3", marks=pytest.mark.long),
    ],
)
def test_a_worker_that_dies_costs_its_device_that_round(
    odd: Small, caplog: pytest.LogCaptureFixture, does: str, said: str
) -> None:
    config = odd(does, rounds=4, set="odd.site=partition-1 odd.at=2")
    record = pooled(config)
    lost = run(odd("", rounds=4), MissingGrid, absent={("partition-1", 2)}, lost=set())
    rejected = record.metrics()[2]["rejected"]
    assert rejected == {"partition-1": "the device's process stopped responding"}  # as on Ray
    assert caplog.text.count(f"a worker process died ({said}") == 1
    for line, other in zip(numbers(record), numbers(lost), strict=True):
        assert {**line, "rejected": None} == {**other, "rejected": None}
        assert line["rejected"].keys() == other["rejected"].keys()


@pytest.mark.extended
def test_what_workers_log_and_warn_of_is_said_here(
    odd: Small, caplog: pytest.LogCaptureFixture
) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        pooled(odd("speak", rounds=1))
    message = [(r.name, r.levelname, r.getMessage()) for r in caplog.records]
    for k in range(3):
        assert message.count(("flwr", "WARNING", f"partition-{k} speaks")) == 1
        assert message.count(("odd", "ERROR", f"partition-{k} is odd")) == 1
    told = {str(w.message): w for w in warned if w.category is RuntimeWarning}
    assert {f"partition-{k} warns" for k in range(3)} <= told.keys()
    assert told["partition-0 warns"].filename.endswith("misbehaving_client.py")


@pytest.mark.extended
def test_where_no_worker_can_be_started_this_process_does_it(
    small: Small, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker, "_PROCESS", "nectar.engines.pool.none_such")
    config = small(method="fedavg")
    assert_same(pooled(config), run(config))
    assert "no worker process could be started; simulating" in caplog.text
    assert "exit code 1" in caplog.text


#: a user's script, without a guard for what a process imports anew
SCRIPT = """
import sys
sys.path.insert(0, {helpers!r})
import nectar
nectar.run("misbehaving_client:METHOD", rounds=2, output_dir={output!r}, **{{
    "odd.epochs": 1, "model.width": 8, "federation.sites": 3, "compute.workers": 2,
    "odd.does": "sleep", "odd.folder": {folder!r}, "odd.at": 2}})
"""


@pytest.mark.extended
@pytest.mark.parametrize(
    "how",
    [
        signal.SIGKILL,
        *(pytest.param(n, marks=pytest.mark.long) for n in (signal.SIGINT, signal.SIGTERM)),
    ],
)
def test_nothing_is_left_behind_by_a_run_that_is_ended(tmp_path: Path, how: signal.Signals) -> None:
    """Both devices are asleep in round 2, where no worker would notice by itself."""
    for name in ("tmp", "places"):
        (tmp_path / name).mkdir()
    before = shared_memory()
    output, folder = str(tmp_path / "runs"), str(tmp_path / "places")
    script = SCRIPT.format(helpers=str(HELPERS), output=output, folder=folder)
    child = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path / "tmp")},
        stderr=subprocess.PIPE,
        text=True,
    )
    until((tmp_path / "places" / "asleep").exists)
    until(lambda: len(workers_of(child.pid)) == 2)
    workers = workers_of(child.pid)
    child.send_signal(how)
    _, message = child.communicate(timeout=300)
    assert child.returncode != 0
    until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
    assert shared_memory() <= before
    assert list((tmp_path / "tmp").iterdir()) == []
    (directory,) = (tmp_path / "runs").iterdir()
    assert not list(directory.rglob("*.tmp"))
    outcome = json.loads((directory / "provenance.json").read_text())["outcome"]
    assert outcome == ("interrupted" if how is signal.SIGINT else "running")
    assert how is signal.SIGINT or "Traceback" not in message
