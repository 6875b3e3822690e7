"""Federations of 100 to 100,000 nodes in this process: seconds, memory and files, by the number of nodes.

Each run has its own process, with one thread, in CPU seconds: two images of 8 x 8 a node, an MLP of 30
hidden units, a hundred devices asked in each of five rounds. Memory is the peak above what the process had after a run
of two nodes.

    python -m benchmarks.nodes tiny 10000 100 5
    python -m benchmarks.nodes cnn 1000 1000 1

are a line of the table, and a round of all of 1,000 nodes with the CNN of 878,538 parameters, one image a device.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np

from benchmarks.measure import Claim, Row, compare, memory_from_now_on, peak_memory
from common.config.loading import load
from common.division import Division
from common.learning.compute import return_freed_memory
from common.sites import Site
from nectar.engines.flower.app import client_app
from nectar.engines.local_grid import LocalGrid
from nectar.engines.local_run import run_here
from server_app.app import Observer, make_strategy
from server_app.run_directory import RunDirectory
from strategies import federated
from strategies.exchange.membership import Attendance, wait_for_sites

NODES, ASKED, ROUNDS = (100, 1_000, 10_000, 100_000), 100, 5
FEW, MANY = 100, 10_000

RunConfig = dict[str, str | int | float | bool]


@dataclass(frozen=True)
class Cost:
    """What a run took.

    Attributes
    ----------
    set_up, roll_call, a_round : float
        CPU seconds: until the record, without the roll call; the roll call; a round with all its output.
    memory, peak : float
        Peak memory above that of a run of two nodes, and of the process, in MB.
    size, inodes : int
        Bytes of the record's files, and how many files and folders it has.
    """

    nodes: int
    asked: int
    set_up: float
    roll_call: float
    a_round: float
    memory: float
    peak: float
    size: int
    inodes: int


@dataclass(frozen=True)
class _Kind:
    """A model and the images that its devices hold."""

    shape: tuple[int, ...]
    classes: int
    images: int
    words: str


KINDS = {
    "tiny": _Kind((8, 8), 4, 2, "model.name=mlp model.width=30"),
    "cnn": _Kind((32, 32, 3), 10, 1, "model.name=cnn"),
}


def rows(pairs: int) -> list[Row]:
    """Print the table, and hold what must not grow with the nodes against a hundred of them."""
    found = {nodes: _elsewhere("tiny", nodes, ASKED, ROUNDS) for nodes in NODES}
    print(drawn_up([*found.values()]))
    few, many = found[FEW], found[MANY]
    return [
        _roll_call(pairs),
        _grown("round of 100, of 100 nodes then 10,000", few.a_round, many.a_round, 1.5),
        _grown("memory above the base", few.memory, many.memory, None, "MB"),
        _grown("record of five rounds", few.size / 1e3, many.size / 1e3, 1.5, "kB", "the bytes"),
    ]


def drawn_up(costs: list[Cost]) -> str:
    """Return the costs as a table, a line a federation."""
    lines = [
        f"{'nodes':>7} {'asked':>6} {'set up':>8} {'roll call':>10} {'a node':>10} {'a round':>8} {'memory':>9} "
        f"{'record':>9} {'inodes':>7}"
    ]
    for cost in costs:
        each = f"{1000 * cost.roll_call / cost.nodes:.4f}ms"
        lines.append(
            f"{cost.nodes:>7} {cost.asked:>6} {cost.set_up:>7.2f}s {cost.roll_call:>9.3f}s {each:>10} "
            f"{cost.a_round:>7.2f}s {cost.memory:>7.1f}MB {cost.size / 1e3:>7.1f}kB {cost.inodes:>7}"
        )
    return "\n".join(lines)


class _Begun(Observer):
    """Notes when the record of a run was there, in seconds of this process."""

    at = 0.0

    def begun(self, record: RunDirectory, sites: Sequence[Site]) -> None:
        self.at = time.process_time()


def cost_of(kind: str, nodes: int, asked: int, rounds: int) -> Cost:
    """Carry out a run of ``nodes`` nodes in this process and return what it took."""
    with tempfile.TemporaryDirectory() as directory:
        config = _config(kind, Path(directory), nodes, asked, rounds)
        few = {**config, "set": f"{config['set']} federation.sites=2 federation.participation=1"}
        run_here(load(few | {"rounds": 1}))
        return_freed_memory()
        before = memory_from_now_on()
        observer = _Begun()
        with _timed() as roll_calls:
            start = time.process_time()
            record = run_here(load(config), observer=observer)
            end = time.process_time()
        there = [*record.directory.rglob("*")]
        return Cost(
            nodes,
            asked,
            observer.at - start - sum(roll_calls),
            sum(roll_calls),
            (end - observer.at) / rounds,
            peak_memory() - before,
            peak_memory(),
            sum(path.stat().st_size for path in there if path.is_file()),
            len(there),
        )


@contextmanager
def _timed() -> Iterator[list[float]]:
    """Give the seconds of the roll calls that are made meanwhile."""
    seconds: list[float] = []

    def timed(*words: object, **more: object) -> Attendance:
        start = time.process_time()
        try:
            return wait_for_sites(*words, **more)  # type: ignore[arg-type]
        finally:
            seconds.append(time.process_time() - start)

    with patch.object(federated, "wait_for_sites", timed):
        yield seconds


def _roll_call(pairs: int) -> Row:
    with tempfile.TemporaryDirectory() as directory:
        config = _config("tiny", Path(directory), MANY, ASKED, 1)
        question = make_strategy(Division(load(config)).run).question

        def roll_call(*, one_for_all: bool) -> None:
            grid = LocalGrid(client_app(), MANY, config, one_for_all=one_for_all)
            there = wait_for_sites(grid, MANY, question, deadline=3600.0, min_replies=1)
            assert len(there.sites) == MANY

        return compare(
            f"roll call of {MANY:,}, each then one for all",
            lambda pair: roll_call(one_for_all=False),
            lambda pair: roll_call(one_for_all=True),
            pairs=pairs,
            claim=Claim(at_least=10.0),
            clock=time.process_time,
        )


def _grown(
    name: str,
    few: float,
    many: float,
    at_most: float | None,
    unit: str = "s",
    of: str = "the time",
) -> Row:
    claim = Claim(at_most=at_most, of=of)
    return Row(name, few, many, (claim.ratio(few, many),), claim, unit)


def _elsewhere(*words: object) -> Cost:
    """Return a run's cost, measured in its own process."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.nodes", *map(str, words)],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).resolve().parent.parent,
        env=os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"},
    )
    return Cost(**json.loads(done.stdout))


def _config(kind: str, directory: Path, nodes: int, asked: int, rounds: int) -> RunConfig:
    form = KINDS[kind]
    rng, n, tests = np.random.default_rng(0), nodes * form.images + 1, 200
    np.savez(
        directory / "images.npz",
        train_images=rng.integers(0, 256, (n, *form.shape), dtype=np.uint8),
        train_labels=np.arange(n) % form.classes,
        test_images=rng.integers(0, 256, (tests, *form.shape), dtype=np.uint8),
        test_labels=np.arange(tests) % form.classes,
    )
    return {
        "method": "fedavg",
        "rounds": rounds,
        "output-dir": str(directory / "runs"),
        "data-dir": str(directory),
        "set": f"data.file={directory / 'images.npz'} data.validation=0 partition.kind=iid {form.words} "
        f"fedavg.epochs=1 federation.sites={nodes} federation.participation={asked / nodes} "
        "compute.workers=1 compute.device=cpu",
    }


if __name__ == "__main__":
    kind, *numbers = sys.argv[1:]
    print(json.dumps(asdict(cost_of(kind, *map(int, numbers)))))
