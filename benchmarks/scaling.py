"""What one more site costs a round, by how large the model is and how many sites there are, against the bare loop.

A round of an MLP on images of 3 x 32 x 32, four a site and one step each: the sites' costs are those of ten sites more,
so that what a round takes once is left out. The bare loop loads the weights, takes the step, and adds what it ends with
to a sum in float64. In CPU seconds, on one core.

    python -m benchmarks.scaling                         curves: parameters, sites, methods
    python -m benchmarks scaling                         the rows that docs/speed.md states
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord
from torch import Tensor

import client_app.app
from benchmarks.made_up import sites_with
from benchmarks.measure import Claim, Row, figure_elsewhere, peak_memory, table, threads
from common.config.loading import load
from common.division import Division
from common.draws.seeding import generator
from common.learning.run import Run
from common.samples.inputs import Samples
from nectar.engines.local_grid import LocalGrid
from server_app.app import make_strategy
from strategies.exchange.inbox import exchange

IMAGES = 4
WIDTHS = {0.1: 32, 1: 325, 10: 3250}
"""Hidden units by millions of parameters."""

FEW, MANY = 4, 14

_ONE_STEP = f"{{0}}.epochs=1 {{0}}.batch={IMAGES}"
_SHORT = {"feddm": "feddm.iterations=1 feddm.ipc=1 feddm.real_batch=4 image_training.epochs=1"}

METHODS, SITES = ("fedavg", "scaffold", "feddm"), (10, 100, 1000)


def rows(pairs: int) -> list[Row]:
    """Measure what a site more takes with a million and ten million parameters."""
    with threads(1):
        return [_row(size, pairs) for size in (1, 10)]


def _row(size: float, pairs: int) -> Row:
    with rounds("fedavg", size, FEW) as few, rounds("fedavg", size, MANY) as many:
        bare, ours = list[float](), list[float]()
        for pair in range(pairs + 1):
            a = _seconds(few.bare), _seconds(lambda n=pair: few.ours(n + 1))
            b = _seconds(many.bare), _seconds(lambda n=pair: many.ours(n + 1))
            if pair:  # the first one warms up
                bare.append((b[0] - a[0]) / (MANY - FEW))
                ours.append((b[1] - a[1]) / (MANY - FEW))
        ratios = tuple(mine / plain for mine, plain in zip(ours, bare, strict=True))
        name = f"a site more, {size:g} M parameters"
        return Row(name, median(bare), median(ours), ratios, Claim())


def _seconds(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


class Rounds:
    """Rounds of one configuration, ours and the bare loop's."""

    def __init__(
        self, method: str, size: float, sites: int, directory: str, more: str = ""
    ) -> None:
        self.config = load(_words(method, size, sites, directory, more))
        self._run = Division(self.config).run
        self._data = [_samples(self._run, k % 64) for k in range(sites)]
        self._strategy = make_strategy(self._run)
        self._strategy.record_id = "benchmark"
        self._grid = LocalGrid(
            client_app.app.app, sites, _words(method, size, sites, directory, more)
        )
        self._model = self._run.build_model()
        self._start = {name: v.clone() for name, v in self._model.state_dict().items()}
        self._sent = ArrayRecord(dict(self._start))

    def ours(self, server_round: int) -> None:
        """Carry a round out: messages, training, judging, averaging."""
        with sites_with(self._data):
            strategy, grid = self._strategy, self._grid
            messages = strategy.configure_train(server_round, self._sent, ConfigRecord(), grid)
            most = strategy.max_reply_bytes
            replies = exchange(grid, messages, deadline=3600.0, max_bytes=most)
            arrays, _ = strategy.aggregate_train(server_round, replies)
            assert arrays is not None

    def bare(self) -> dict[str, Tensor]:
        """Return the sum of what the sites end with."""
        model, total = self._model.train(), dict[str, Tensor]()
        for samples in self._data:
            model.load_state_dict(self._start)
            optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
            F.cross_entropy(model(samples.inputs(slice(None))), samples.labels).backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            for name, value in model.state_dict().items():
                if name in total:
                    total[name] += value
                else:
                    total[name] = value.double()
        return total


@contextmanager
def rounds(method: str, size: float, sites: int, more: str = "") -> Iterator[Rounds]:
    """Give the rounds of one configuration; what they write is gone at the end."""
    with tempfile.TemporaryDirectory() as directory:
        yield Rounds(method, size, sites, directory, more)


def _words(
    method: str, size: float, sites: int, directory: str, more: str
) -> dict[str, str | int | float | bool]:
    return {
        "method": method,
        "dataset": "cifar10",
        "output-dir": directory,
        "data-dir": directory,
        "set": f"model.name=mlp model.width={WIDTHS[size]} {_SHORT.get(method, _ONE_STEP.format(method))} "
        f"federation.sites={sites} evaluation.on=none compute.client_cores=1 compute.device=cpu {more}",
    }


def _samples(made: Run, k: int) -> Samples:
    rng = generator(0, "benchmark", k)
    images = torch.randn(IMAGES, *made.info.shape, generator=rng)
    return Samples.of(images, torch.randint(0, len(made.info.classes), (IMAGES,), generator=rng))


def curves() -> Iterator[tuple[str, int, float, float]]:
    """Yield (method, sites, milliseconds of a core a site and round, peak of memory in MB), by sites."""
    for method in METHODS:
        for sites in SITES:
            seconds, peak = (
                figure_elsewhere("benchmarks.scaling", what, method, str(sites))
                for what in ("seconds", "peak")
            )
            yield method, sites, seconds / sites * 1e3, peak


def figure(what: str, method: str, sites: int) -> float:
    """Return the CPU seconds of a round with 0.1 million parameters, or the most MB that this process has had."""
    with threads(1), rounds(method, 0.1, sites) as made:
        made.ours(1)
        seconds = _seconds(lambda: made.ours(2))
    return seconds if what == "seconds" else peak_memory()


def main() -> None:
    """Print the curves."""
    if sys.argv[1:]:
        what, method, sites = sys.argv[1:]
        print(figure(what, method, int(sites)))
        return
    for method, sites, each, peak in curves():
        print(f"{method:9} {sites:6} sites  {each:6.2f} ms a site  {peak:6.0f} MB", flush=True)
    with threads(1):
        print(table([_row(size, 3) for size in WIDTHS]))


if __name__ == "__main__":
    main()
