"""The runs of a comparison, forked from one process that has imported what they need, against one start each.

Four runs of one round on digits, one after the other, one core: from the first's start to the last's end, the fork
server's own start included. That is the least that a table has; longer runs gain the same seconds each.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.measure import Claim, Row, compare
from nectar.comparison.run_start import RunStarter, Started, start_alone

RUNS = 4
LEAST = 1.5


def work(start: Callable[[list[str], Path], Started], folder: Path) -> None:
    """Carry out the runs."""
    for seed in range(RUNS):
        words = ["method=fedavg", "rounds=1", "fedavg.epochs=1", f"seed={seed}"]
        log = folder / f"{seed}.log"
        process = start([*words, f"output-dir={folder}"], log)
        while process.poll() is None:
            time.sleep(0.02)
        if process.returncode:
            raise RuntimeError(log.read_text())


def alone(_: int) -> None:
    """Start each by itself."""
    with tempfile.TemporaryDirectory() as folder:
        work(lambda words, log: start_alone(words, log, threads=1, cores=1), Path(folder))


def forked(_: int) -> None:
    """Fork each."""
    with tempfile.TemporaryDirectory() as folder, RunStarter() as starter:
        work(lambda words, log: starter.start(words, log, threads=1, cores=1), Path(folder))


def rows(pairs: int) -> Iterator[Row]:
    """Measure both."""
    claim = Claim(at_least=LEAST)
    yield compare(f"comparison of {RUNS} short runs", alone, forked, pairs=pairs, claim=claim)
