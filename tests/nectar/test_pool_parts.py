"""What a pool of processes is made of: how messages come to a worker, the rule on when it pays."""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from common.config.loading import load
from common.errors import ConfigError
from nectar.comparison import run_process
from nectar.comparison.scheduler import PlannedRun
from nectar.engines import processes
from nectar.engines.pool import grid
from nectar.engines.pool.grid import Forecast, most_processes
from nectar.engines.pool.pool import Receiver, Sender

pytestmark = pytest.mark.promise(
    "Records",
    "A pool gives the numbers of one process, to the bit; a dead worker costs its site that "
    "round; nothing is left or printed after",
)


@pytest.fixture
def ends() -> Iterator[tuple[Sender, Receiver, Connection]]:
    here, there = Pipe()
    with here, there:
        yield Sender(here, keep=True), Receiver(there, keep=True), there


def carry(ends: tuple[Sender, Receiver, Connection], item: object) -> Any:
    """Send something and receive it, beside each other: a pipe holds less than a large one."""
    sending = threading.Thread(target=ends[0].send, args=(item,))
    sending.start()
    received = ends[1].receive()
    sending.join()
    return received


def content() -> RecordDict:
    arrays = {
        "1": np.arange(6, dtype=np.float32).reshape(2, 3),
        "0": np.array(7, dtype=np.int64),
        "empty": np.zeros((0, 4), dtype=np.uint8),
    }
    return RecordDict(
        {
            "arrays": ArrayRecord({k: ArrayRecord([v])["0"] for k, v in arrays.items()}),
            "config": ConfigRecord(
                {
                    "text": "ä\n",
                    "whole": 1,
                    "real": 1.0,
                    "tiny": 5e-324,
                    "no": False,
                    "bytes": b"\x00\xff",
                    "texts": ["a", ""],
                    "blobs": [b"", b"\x01"],
                    "nan": math.nan,
                    "bytes-word": "bytes",
                }
            ),
            "metrics": MetricRecord({"loss": 0.1 + 0.2, "counts": [1, 2**60], "inf": -math.inf}),
            "none": ArrayRecord(),
        }
    )


def test_a_message_comes_as_it_was_sent(ends: tuple[Sender, Receiver, Connection]) -> None:
    given = content()
    read = carry(ends, given)
    assert list(read) == list(given)
    assert read.array_records == given.array_records
    assert list(read["arrays"]) == ["1", "0", "empty"]
    assert read["metrics"] == given["metrics"]
    there, here = dict(read["config"]), dict(given["config"])
    assert all(math.isnan(config.pop("nan")) for config in (there, here))
    assert there == here
    assert [type(v) for v in there.values()] == [type(v) for v in here.values()]


def message(*records: ArrayRecord) -> RecordDict:
    return RecordDict({str(i): record for i, record in enumerate(records)})


def blobs(content: RecordDict) -> list[bytes]:
    return [array.data for record in content.array_records.values() for array in record.values()]


def test_what_two_messages_in_a_row_share_is_sent_once_and_is_one_object(
    ends: tuple[Sender, Receiver, Connection],
) -> None:
    weights, means, own = (ArrayRecord([np.full(10**6, k)]) for k in range(3))
    first = blobs(carry(ends, message(weights, own)))
    assert first == blobs(message(weights, own))
    ends[0].send(message(weights, weights))  # it would not fit into the pipe
    again = blobs(ends[1].receive())
    assert again[0] is again[1] is first[0]
    assert blobs(carry(ends, message(means))) == blobs(message(means))
    assert blobs(carry(ends, message(weights)))[0] is not first[0], "nobody keeps what is over"
    assert not ends[2].poll(), "nothing is left in the pipe"


def test_an_end_that_keeps_nothing_is_sent_all_again() -> None:
    here, there = Pipe()
    with here, there:
        sender, receiver = Sender(here, keep=False), Receiver(there, keep=False)
        given = message(ArrayRecord([np.zeros(1000)]))
        for _ in range(2):
            sender.send(given)
            assert blobs(receiver.receive()) == blobs(given)


def test_what_cannot_be_sent_leaves_nothing_for_the_next_message(
    ends: tuple[Sender, Receiver, Connection],
) -> None:
    shared = ["in both"]
    with pytest.raises((AttributeError, pickle.PicklingError)):
        ends[0].send([shared, lambda: None])
    assert carry(ends, [shared, b"x" * 1000]) == [shared, b"x" * 1000]


def test_equal_bytes_that_are_other_objects_are_told_apart(
    ends: tuple[Sender, Receiver, Connection],
) -> None:
    """What is known by its identity must live as long as that is asked for."""
    for k in range(20):
        given = message(ArrayRecord([np.full(1000, k)]))
        assert blobs(carry(ends, given)) == blobs(given)
        del given


def test_a_pool_pays_where_it_saves_more_than_it_costs() -> None:
    each = 1.0
    needed = 2 * grid.LEAST_GAIN  # of two processes the second saves half
    rounds = Forecast(rounds=10, asked=3)
    assert not rounds.pays(1, 1000, 2), "nothing is known yet"
    rounds.worked(100.0)
    assert not rounds.pays(1, 1000, 2), "the first one also imports"
    rounds.worked(each)
    assert rounds.pays(10, math.ceil(needed / each), 2)
    assert not rounds.pays(10, math.ceil(needed / each) - 1, 2)
    assert rounds.pays(1, 3, 2), "27 devices to come and 3 waiting"
    assert not rounds.pays(1, 2, 2)
    assert not rounds.pays(1, 1000, 1)
    tiny = Forecast(rounds=10**9, asked=10)
    for _ in range(3):
        tiny.worked(grid.LEAST_DEVICE / 2)
    assert not tiny.pays(1, 10, 64), "carrying messages costs as much"


CASES = [
    ("", None, 8, 8),
    ("compute.client_cores=3", None, 8, 2),
    ("federation.sites=3", None, 8, 3),
    ("federation.sites=100 federation.participation=0.04", None, 8, 4),
    ("compute.workers=1", None, 8, 1),
    ("compute.workers=6", None, 2, 6),
    ("compute.workers=60", None, 2, 10),
    ("", "2", 8, 2),
    ("", "20", 8, 8),
    ("compute.workers=6", "2", 8, 2),
    ("compute.workers=6 compute.client_cores=2", "2", 8, 1),
]


@pytest.mark.parametrize(("words", "granted", "cores", "processes"), CASES)
def test_how_many_processes(
    monkeypatch: pytest.MonkeyPatch, words: str, granted: str | None, cores: int, processes: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    if granted is None:
        monkeypatch.delenv("NECTAR_CORES", raising=False)
    else:
        monkeypatch.setenv("NECTAR_CORES", granted)
    config: dict[str, Any] = {"set": f"compute.device=cpu {words}"}
    assert most_processes(load(config)) == processes


@pytest.mark.parametrize("named", ["0", "two", "-1", "1.5"])
def test_a_share_that_is_no_number_of_cores_is_refused(
    monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setenv("NECTAR_CORES", named)
    with pytest.raises(ConfigError, match=f"NECTAR_CORES={named} must be an integer"):
        most_processes(load({}))


def test_a_comparison_counts_a_runs_workers_as_cores() -> None:
    words = "compute.workers=3 compute.client_cores=2 compute.server_cores=4"
    task = PlannedRun(None, 0, load({"set": words}), None)  # type: ignore[arg-type]
    assert (task.threads, task.cores) == (4, 6)


def test_a_comparison_tells_a_run_its_threads_and_its_share_of_the_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: dict[str, str] = {}
    monkeypatch.setattr(
        run_process.processes, "start", lambda words, environment, **_: told.update(environment)
    )
    run_process.RunStarter().start([], tmp_path / "log", threads=2, cores=4)
    assert (told["OMP_NUM_THREADS"], told["NECTAR_CORES"]) == ("2", "4")


#: a worker that is signalled a second time as it ends
SIGNALLED = """
import os, signal, sys
from nectar.engines.pool import worker_process

ended, real = [], signal.signal

def work(tasks, answers):
    try:
        {ends}
    finally:
        ended.append(True)

def late(number, handler):
    if ended:
        ended.clear()
        signal.raise_signal(signal.SIGTERM)
    return real(number, handler)

worker_process._work, signal.signal = work, late
sys.exit(worker_process.main([str(os.getppid()), str(os.pipe()[0])]))
"""


@pytest.mark.extended
@pytest.mark.parametrize("ends", ["raise EOFError"])
def test_a_worker_that_is_signalled_as_it_ends_prints_nothing(ends: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED.format(ends=ends)],
        env=os.environ | processes.import_path(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
