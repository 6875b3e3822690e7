"""Several GPUs, pretended: who is given which by the variable that CUDA reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from common.config.loading import load
from common.learning.compute import gpu_alone, gpus
from nectar.comparison.run_process import RunStarter, runs_at_a_time
from nectar.engines import processes
from nectar.engines.pool import grid
from nectar.engines.pool.grid import most_processes


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_processes_take_them_in_turn(three: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpus() == ("0", "1", "2")
    given = [gpu_alone("auto", number)["CUDA_VISIBLE_DEVICES"] for number in range(5)]
    assert given == ["0", "1", "2", "0", "1"]
    assert gpu_alone("cuda:1", 1) == gpu_alone("cpu", 1) == {}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,GPU-5,2")
    assert gpus() == ("7", "GPU-5", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert gpu_alone("auto", 0) == {}, "one is everybody's"


@pytest.mark.parametrize(("device", "workers"), [("auto", 3), ("cuda", 3), ("cuda:1", 1)])
def test_the_pool_has_a_worker_for_each(
    three: None, monkeypatch: pytest.MonkeyPatch, device: str, workers: int
) -> None:
    monkeypatch.setattr(grid, "torch_device", lambda _: torch.device("cuda"))
    words = {"set": f"compute.device={device} federation.sites=9"}
    assert most_processes(load(words)) == workers


def test_a_comparisons_run_goes_where_least_is_done(
    three: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Process:
        code: int | None = None

        def poll(self) -> int | None:
            return self.code

    given, started = list[str](), list[Process]()

    def start(*_: Any, environment: Mapping[str, str], **__: Any) -> Process:
        given.append(environment.get("CUDA_VISIBLE_DEVICES", ""))
        started.append(Process())
        return started[-1]

    monkeypatch.setattr(processes, "start", start)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert runs_at_a_time(1, gpu=True) == 3
    starter, log = RunStarter(), tmp_path / "log"
    for ends in (None, None, None, 1, 0):
        if ends is not None:
            started[ends].code = 0
        starter.start([], log, threads=1, cores=1, gpu=True)
    starter.start([], log, threads=1, cores=1, gpu=False)
    assert given == ["0", "1", "2", "1", "0", ""]
