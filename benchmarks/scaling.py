"""What one more site costs a round, by how large the model is and how many sites there are, against the bare loop.

A round of an MLP on images of 3 x 32 x 32, four a site and one step each: the sites' costs are those of ten sites more,
so that what a round takes once is left out. The bare loop loads the weights, takes the step, and adds what it ends with
to a sum in float64. In CPU seconds, on one core.

    python -m benchmarks.scaling [--plot FILE.svg]       curves: parameters, sites, methods; passes over the weights
    python -m benchmarks scaling                         the rows that docs/speed.md states
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import client_app.app
from benchmarks.made_up import RunConfig, carry_out, floats, sites_with
from benchmarks.measure import Claim, Row, figure_elsewhere, peak_memory, table, threads
from common.config.loading import load
from common.division import Division
from common.models.mlp import MLP
from nectar.charts import Series, lines, save
from nectar.engines.local_grid import LocalGrid
from server_app.app import make_strategy

IMAGES = 4
MODELS = {
    0.1: "mlp model.width=32",
    1: "mlp model.width=325",
    10: "mlp model.width=3250",
    50: "benchmarks.scaling:wide",
}
"""What ``model.name`` says, by millions of parameters."""

FEW, MANY = 4, 14

_HERE = str(Path(__file__).parents[1])

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
    start = time.process_time()
    work()
    return time.process_time() - start


class Rounds:
    """Rounds of one configuration, ours and the bare loop's."""

    def __init__(
        self, method: str, size: float, sites: int, directory: str, more: str = ""
    ) -> None:
        words = _words(method, size, sites, directory, more)
        self._run = Division(load(words)).run
        own = range(min(sites, 64))  # more share these
        self._data = [floats(self._run, k, IMAGES) for k in own]
        self._strategy = make_strategy(self._run)
        self._strategy.record_id = "benchmark"
        self._grid = LocalGrid(client_app.app.app, sites, words)
        self._model = self._run.build_model()
        self._start = {name: v.clone() for name, v in self._model.state_dict().items()}
        self._sent = ArrayRecord(dict(self._start))

    def ours(self, server_round: int) -> None:
        """Carry a round out: messages, training, judging, averaging."""
        with sites_with(self._data):
            carry_out(self._strategy, self._grid, self._sent, server_round)

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


def wide(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a network of more hidden units than ``model.width`` may name."""
    return MLP(shape, classes, width=16250)


@contextmanager
def rounds(method: str, size: float, sites: int, more: str = "") -> Iterator[Rounds]:
    """Give the rounds of one configuration; what they write is gone at the end."""
    with tempfile.TemporaryDirectory() as directory:
        yield Rounds(method, size, sites, directory, more)


def _words(method: str, size: float, sites: int, directory: str, more: str) -> RunConfig:
    return {
        "method": method,
        "dataset": "cifar10",
        "output-dir": directory,
        "data-dir": directory,
        "set": f"model.name={MODELS[size]} {_SHORT.get(method, _ONE_STEP.format(method))} "
        f"federation.sites={sites} evaluation.on=none compute.client_cores=1 compute.device=cpu {more}",
    }


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


def _is_nectars(file: str) -> bool:
    return file.startswith(_HERE) and "site-packages" not in file and file != __file__


class _Bytes(TorchDispatchMode):
    """Counts what torch's operations read and write, by the function of Nectar that called them.

    What NumPy copies, and bytes on their way through a message, are not torch's.
    """

    def __init__(self) -> None:
        super().__init__()
        self.moved: Counter[tuple[str, str]] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            at: FrameType | None = sys._getframe(1)
            while at is not None and not _is_nectars(at.f_code.co_filename):
                at = at.f_back
            by = (
                ""
                if at is None
                else f"{at.f_code.co_filename[len(_HERE) + 1 :]}, {at.f_code.co_name}"
            )
            tensors = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, Tensor)]
            self.moved[by, func.__name__] += sum(t.nbytes for t in tensors)
        return out


def passes() -> Iterator[str]:
    """Yield what of ten million weights a site more has read and written, in copies of them, by who does it."""
    counted = list[_Bytes]()
    for sites in (FEW, MANY):
        with rounds("fedavg", 10, sites) as made:
            made.ours(1)
            with _Bytes() as counting:
                made.ours(2)
            counted.append(counting)
            size = sum(t.nbytes for t in made._start.values())
    few, many = counted
    each = {k: (n - few.moved[k]) / size / (MANY - FEW) for k, n in many.moved.items()}
    for (by, what), copies in sorted(each.items(), key=lambda item: -item[1]):
        if copies > 0.05:
            yield f"{copies:5.2f}  {by}: {what}"
    yield f"{sum(each.values()):5.2f}  in all"


def draw(found: Sequence[tuple[str, int, float, float]], path: Path) -> None:
    """Draw what a site and round takes, by method and sites."""
    own = {m: [one for one in found if one[0] == m] for m in METHODS}
    series = [
        Series(m, [n for _, n, _, _ in of], [ms for *_, ms, _ in of]) for m, of in own.items()
    ]
    labels = {"x_label": "sites in a round", "y_label": "ms of a core, a site and round"}
    figure = lines(series, title="0.1 M parameters, one step a site", **labels, log_x=True)
    figure.axes[0].set_ylim(bottom=0)
    save(figure, path)


def main() -> None:
    """Print the curves; ``--plot FILE`` draws them."""
    if len(sys.argv) == 4:
        what, method, sites = sys.argv[1:]
        print(figure(what, method, int(sites)))
        return
    found = list[tuple[str, int, float, float]]()
    for one in curves():
        found.append(one)
        method, sites, each, peak = one
        print(f"{method:9} {sites:6} sites  {each:6.2f} ms a site  {peak:6.0f} MB", flush=True)
    if sys.argv[1:2] == ["--plot"]:
        draw(found, Path(sys.argv[2]))
    with threads(1):
        print(table([_row(size, 3) for size in MODELS]))
        print(*passes(), sep="\n")


if __name__ == "__main__":
    main()
