"""One round of FedAvg in this process against the same round in a pool of two, one thread each: the same numbers.

Ten sites of 100 images of 3x32x32 train ConvNet 3x128 for an epoch; a hundred sites of five train an MLP of 30 hidden
units, where carrying messages to and fro is most of the work. The workers' start is left out: the rule on when a pool
pays (`Forecast` in nectar/engines/pool/grid.py) has it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord

from benchmarks.measure import Claim, Row, compare
from common.config.loading import load
from common.division import Division
from nectar.engines.flower.app import client_app
from nectar.engines.pool.grid import local_federation
from server_app.app import make_strategy
from strategies.exchange.exchange import exchange

STATED = Claim()

#: sites, images of each, what they learn, what a pool of two must reach
ROUNDS = {
    "10 sites, ConvNet": (10, 100, "model.name=convnet model.width=128", Claim(at_least=1.6)),
    "100 tiny sites": (100, 5, "model.name=mlp model.width=30", STATED),
}

_RUN = (
    "fedavg.epochs=1 fedavg.batch=64 evaluation.on=none partition.kind=iid compute.device=cpu "
    "data.validation=0 data.test_share=0"
)

Work = Callable[[int], None]


def rows(pairs: int) -> Iterator[Row]:
    """Measure each round."""
    for name, (sites, images, model, claim) in ROUNDS.items():
        with tempfile.TemporaryDirectory() as directory, ExitStack() as federations:
            _write_images(Path(directory, "images.npz"), sites * images)
            one, two = (
                _one_round(directory, f"federation.sites={sites} {model} {workers}", federations)
                for workers in ("compute.workers=1", "compute.workers=2")
            )
            message = f"{name}, one process then two"
            yield compare(message, one, two, pairs=pairs, claim=claim)


def _write_images(path: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    np.savez(path, train_images=images, train_labels=np.arange(count) % 10)


def _one_round(directory: str, words: str, federations: ExitStack) -> Work:
    settings = f"{_RUN} data.file={directory}/images.npz {words}"
    places = {"output-dir": directory, "data-dir": directory}
    config = load({"method": "fedavg", **places, "set": settings})
    grid = federations.enter_context(local_federation(client_app(), config))
    run = Division(config).run
    strategy = make_strategy(run)
    strategy.record_id = "benchmark"
    start = ArrayRecord(run.build_model().state_dict())

    def one_round(pair: int) -> None:
        torch.set_num_threads(1)
        messages = strategy.configure_train(pair + 1, start, ConfigRecord(), grid)
        replies = exchange(
            grid, messages, deadline=3600.0, max_bytes=strategy.round.max_reply_bytes
        )
        arrays, _ = strategy.aggregate_train(pair + 1, replies)
        assert arrays is not None

    return one_round
