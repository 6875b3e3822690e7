"""What a pool of processes is made of: shared files, frames, letters, the board, the rule on when it pays."""

from __future__ import annotations

import json
import math
import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from common.config.loading import load
from common.errors import ConfigError
from nectar.comparison.plan import Task
from nectar.engines import run_start
from nectar.engines.pool import forecast, letters, sheets
from nectar.engines.pool.board import Board
from nectar.engines.pool.forecast import Forecast
from nectar.engines.pool.grid import most_processes
from nectar.engines.pool.letters import Pile
from nectar.engines.pool.line import Line


def open_files() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


def test_a_sheet_is_read_as_it_was_written_and_nobody_can_change_it() -> None:
    before = open_files()
    descriptor, offsets = sheets.write([b"abc", b"", b"defg"])
    assert offsets == [0, 3, 3]
    assert sheets.read(descriptor, 3, 4) == b"defg"
    assert sheets.read(descriptor, 1, 4) == b"bcde"
    assert sheets.read(descriptor, 0, 0) == b""
    with pytest.raises(EOFError, match="1 bytes too early"):
        sheets.read(descriptor, 0, 8)
    with pytest.raises(PermissionError):
        os.pwrite(descriptor, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, 0)
    os.close(descriptor)
    assert open_files() == before


def test_a_large_sheet_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sheets, "_PIECE", 3)
    descriptor, _ = sheets.write([b"0123456789"])
    assert sheets.read(descriptor, 1, 8) == b"12345678"
    os.close(descriptor)


def test_without_memfd_a_file_without_a_name_does_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(sheets.tempfile, "tempdir", str(tmp_path))
    descriptor, _ = sheets.write([b"abc"])
    assert list(tmp_path.iterdir()) == []
    assert sheets.read(descriptor, 1, 2) == b"bc"
    os.close(descriptor)


def test_frames_come_whole_with_their_descriptors_and_the_end_is_none() -> None:
    here, there = socket.socketpair()
    near, far = Line(here), Line(there)
    descriptor, _ = sheets.write([b"beside"])
    near.send({"log": ["flwr", 20, "a ✓ b"]})
    near.send({"x": math.inf}, [descriptor, descriptor])
    os.close(descriptor)
    assert far.receive() == ({"log": ["flwr", 20, "a ✓ b"]}, [])
    head, descriptors = far.receive() or ({}, [])
    assert head == {"x": math.inf}
    assert [sheets.read(each, 0, 6) for each in descriptors] == [b"beside"] * 2
    for each in descriptors:
        os.close(each)
    near.end()
    assert far.receive() is None
    near.close()
    far.close()


def test_a_frame_that_breaks_off_is_the_end_and_leaves_no_descriptor_open() -> None:
    before = open_files()
    here, there = socket.socketpair()
    descriptor, _ = sheets.write([b"x"])
    socket.send_fds(here, [(1000).to_bytes(8, "big") + b'{"cut'], [descriptor])
    os.close(descriptor)
    here.close()
    line = Line(there)
    assert line.receive() is None
    line.close()
    assert open_files() == before


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


def test_a_letter_is_read_as_the_content_that_was_written() -> None:
    given, pile = content(), Pile()
    frame = json.loads(json.dumps(letters.written(given, pile.place)))
    descriptor, _ = sheets.write(pile.blobs)
    read = letters.read(frame, lambda place: sheets.read(descriptor, *place[1:]))
    os.close(descriptor)
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


def test_what_messages_share_is_written_once_and_kept_while_a_round_needs_it() -> None:
    before = open_files()
    weights, means, own = (ArrayRecord([np.full(9, k)]) for k in range(3))
    (w,), (m,), (o,) = ([a.data for a in r.values()] for r in (weights, means, own))
    board = Board()
    board.pin([message(weights, own), message(weights)])
    assert board.place_of(o) is None
    assert list(board.sheets) == [1]
    place = board.place_of(w)
    assert place is not None
    assert sheets.read(board.sheets[1], *place[1:]) == w
    board.pin([message(weights, means)])  # another wave of the same round, one message of it
    assert (board.place_of(w), board.place_of(m)) == (place, None)
    board.pin([message(weights, means), message(weights, means)])
    assert list(board.sheets) == [1, 2]
    board.pin([message(means), message(means)])
    assert list(board.sheets) == [2]
    assert board.place_of(w) is None
    board.clear()
    assert open_files() == before


def test_a_pool_pays_where_it_saves_more_than_it_costs() -> None:
    each = 1.0
    needed = 2 * forecast.LEAST_GAIN  # of two processes the second saves half
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
        tiny.worked(forecast.LEAST_DEVICE / 2)
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
    with pytest.raises(ConfigError, match=f"NECTAR_CORES={named} must be a whole number"):
        most_processes(load({}))


def test_a_comparison_counts_a_runs_workers_as_cores() -> None:
    words = "compute.workers=3 compute.client_cores=2 compute.server_cores=4"
    task = Task(None, 0, load({"set": words}), None)  # type: ignore[arg-type]
    assert (task.threads, task.cores) == (4, 6)


def test_a_comparison_tells_a_run_its_threads_and_its_share_of_the_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: dict[str, str] = {}
    monkeypatch.setattr(run_start.subprocess, "Popen", lambda words, env, **_: told.update(env))
    run_start.start_alone([], tmp_path / "log", threads=2, cores=4)
    assert (told["OMP_NUM_THREADS"], told["NECTAR_CORES"]) == ("2", "4")
