"""A device's round of FedSynth against its round of FedAvg, and what a longer distillation does to the peak of memory.

One site of 5,400 images of 28x28 (MNIST among ten), MLP 784-200-10, FedAvg's one epoch in batches of 64. At the default
rate of 7.8 the 25 examples that a device may send are m batches of 25 / m. A round is all that a device does between
the weights' arrival and the payload: with ``objective=update`` that holds the local training it imitates, with ``loss``
``fidelity=off`` leaves it out, as the paper does. The seconds are stated, nothing is claimed of them; memory is claimed
not to grow with E. Linux is needed, for the peaks.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from statistics import median

import torch
from flwr.app import RecordDict

from benchmarks.measure import Claim, Row, compare, figure_elsewhere, peak_memory, threads
from client_app.device import DeviceClient
from client_app.fedavg import FedAvgClient
from client_app.fedsynth import FedSynthClient
from client_app.state import ContextState
from common.config.loading import load
from common.division import Division
from common.draws.seeding import generator
from common.samples.inputs import Samples
from common.wire.weights import Weights

IMAGES, THREADS = 5400, 2
#: rounds that are measured: m, E
ROUNDS = ((1, 20), (1, 40), (1, 100), (1, 200), (5, 40), (25, 40))
#: the most that the peak of memory may grow from E=20 to E=400: the allocator's own wear, where keeping the graphs
#: would make it 20
GROWTH = 1.5
_SHORT, _LONG, _STEPS = 20, 400, 5


def rows(pairs: int) -> Iterator[Row]:
    """Measure seconds for both objectives, then the peaks of memory."""
    with threads(THREADS), tempfile.TemporaryDirectory() as directory:
        fedavg = device(FedAvgClient, "fedavg.epochs=1 fedavg.batch=64", directory)
        for objective in ("loss", "update"):
            for steps, iterations in ROUNDS:
                ours = fedsynth(objective, steps, iterations, directory)
                yield compare(
                    f"device round {objective} m={steps} E={iterations}",
                    one_round(fedavg),
                    one_round(ours),
                    pairs=pairs,
                    claim=Claim(),
                )
    yield _memory(pairs)


def device(
    cls: type[DeviceClient], words: str, directory: str, images: int = IMAGES
) -> DeviceClient:
    """Return a site's device with random images: what they show costs no time."""
    method = "fedsynth" if cls is FedSynthClient else "fedavg"
    config = load(
        {
            "method": method,
            "dataset": "mnist",
            "output-dir": directory,
            "data-dir": directory,
            "set": f"model.name=mlp model.width=200 compute.device=cpu evaluation.on=none {words}",
        }
    )
    made, draw = Division(config).run, generator(0, "benchmark")
    empty = Samples.of(torch.zeros(0, 1, 28, 28), torch.zeros(0, dtype=torch.int64))
    samples = Samples(
        torch.randint(0, 256, (images, *made.info.shape), generator=draw, dtype=torch.uint8),
        torch.randint(0, len(made.info.classes), (images,), generator=draw),
        torch.full((1, 1, 1), 1 / 64.0),
        torch.full((1, 1, 1), -2.0),
    )
    return cls(made, "partition-0", samples, empty, ContextState(RecordDict()))


def fedsynth(
    objective: str, steps: int, iterations: int, directory: str, images: int = IMAGES
) -> DeviceClient:
    """Return the same site's FedSynth device."""
    words = (
        f"fedsynth.objective={objective} fedsynth.steps={steps} fedsynth.iterations={iterations} "
        "fedsynth.fidelity=off fedsynth.epochs=1 fedsynth.batch=64"
    )
    return device(FedSynthClient, words, directory, images)


def one_round(client: DeviceClient) -> Callable[[int], object]:
    """Return a site's complete round: from the weights' arrival to the encoded payload."""
    weights = Weights.of(client.run.build_model()).encode()
    phase = "synthesize" if isinstance(client, FedSynthClient) else "train"

    def work(pair: int) -> object:
        return client.fit(weights, {"server-round": pair, "phase": phase})

    return work


def _memory(pairs: int) -> Row:
    """Compare the peaks of processes of their own, one a measurement: a peak never falls again."""
    short, long = ([peak_elsewhere(e) for _ in range(pairs)] for e in (_SHORT, _LONG))
    claim = Claim(at_most=GROWTH, of="the memory")
    ratios = tuple(map(claim.ratio, short, long))
    name = f"peak memory m={_STEPS} E={_SHORT}, E={_LONG}"
    return Row(name, median(short), median(long), ratios, claim, unit="MB")


def peak_elsewhere(iterations: int) -> float:
    """Return what a distillation of ``iterations`` added to the peak of a new process, in MB."""
    return figure_elsewhere("benchmarks.synthetic_update", str(iterations))


def peak_here(iterations: int) -> float:
    """Distil once and return by how many MB that raised this process's peak of memory."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        work = one_round(fedsynth("loss", _STEPS, iterations, directory))
        before = peak_memory()
        work(1)
        return peak_memory() - before


if __name__ == "__main__":
    print(peak_here(int(sys.argv[1])))
