"""What a round of a large model takes at its peak, in copies of the model's weights, against a bare loop.

ResNet-18 for 32 x 32 images, four of them a device and one step. The bare loop holds what averaging needs: the weights,
a model with its gradients, and the sum in float64. Each figure comes from a separate process, above its memory with
only the weights.

    python -m benchmarks.round_memory ours 10
"""

from __future__ import annotations

import sys
import tempfile
from statistics import median

import torch
from flwr.app import ArrayRecord

import client_app.app
from benchmarks.made_up import RunConfig, carry_out, floats, sites_with
from benchmarks.measure import Claim, Row, figure_elsewhere, memory_from_now_on, peak_memory
from common.config.loading import load
from common.division import Division
from common.draws.seeding import generator
from common.learning.compute import return_freed_memory, use_threads
from common.learning.run import Run
from common.learning.training import train
from common.samples.inputs import Samples
from common.settings.fedavg import TrainingSettings
from nectar.engines.local_grid import LocalGrid
from server_app.app import make_strategy

IMAGES, CLIENTS = 4, (2, 10)


def rows(pairs: int) -> list[Row]:
    """Measure rounds of two and of ten devices; what a step takes for a moment differs from run to run."""
    return [_row(clients, pairs) for clients in CLIENTS]


def _row(clients: int, pairs: int) -> Row:
    bare, ours = zip(*(_pair(clients) for _ in range(pairs)), strict=True)
    claim = Claim(at_most=1.1, of="the memory")
    ratios = tuple(map(claim.ratio, bare, ours))
    name = f"copies at the peak, {clients} devices"
    return Row(name, median(bare), median(ours), ratios, claim, unit="")


def _pair(clients: int) -> tuple[float, float]:
    return _elsewhere("bare", clients), _elsewhere("ours", clients)


def _elsewhere(way: str, clients: int) -> float:
    return figure_elsewhere("benchmarks.round_memory", way, str(clients))


def peak(way: str, clients: int) -> float:
    """Return the peak of one round, in copies of the weights."""
    with tempfile.TemporaryDirectory() as directory:
        config = _config(clients, directory)
        made = Division(load(config)).run
        data = [floats(made, k, IMAGES) for k in range(clients)]
        with sites_with(data):
            strategy = make_strategy(made)
            model = made.build_model()
            _step(made, model, data[0])  # what torch keeps for good is there from now on
            start = {name: value.clone() for name, value in model.state_dict().items()}
            sent = ArrayRecord(dict(start))
            del model
            if way == "ours":
                start.clear()
            use_threads(1)
            return_freed_memory()
            copy = sum(len(array.data) for array in sent.values()) / 1e6
            before = memory_from_now_on() - copy
            if way == "bare":
                _bare_round(made, start, data)
            else:
                strategy.record_id = "benchmark"
                carry_out(strategy, LocalGrid(client_app.app.app, clients, config), sent, 1)
            return (peak_memory() - before) / copy


def _bare_round(made: Run, start: dict[str, torch.Tensor], data: list[Samples]) -> None:
    model = made.build_model()
    sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in start.items()}
    for samples in data:
        model.load_state_dict(start)
        _step(made, model, samples)
        for name, value in model.state_dict().items():
            sums[name] += value


def _step(made: Run, model: torch.nn.Module, samples: Samples) -> None:
    settings = made.config.settings
    assert isinstance(settings, TrainingSettings)
    train(model, samples, settings, made.task, generator(0, "step"), steps=1)


def _config(clients: int, directory: str) -> RunConfig:
    return {
        "method": "fedavg",
        "dataset": "cifar10",
        "output-dir": directory,
        "data-dir": directory,
        "set": f"model.name=resnet18 model.norm=group fedavg.epochs=1 federation.sites={clients} "
        "evaluation.on=none compute.client_cores=1 compute.device=cpu",
    }


if __name__ == "__main__":
    print(peak(sys.argv[1], int(sys.argv[2])))
