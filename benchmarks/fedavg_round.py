"""One round of FedAvg, and of SCAFFOLD, in the in-process grid against a bare training loop over the same batches.

The grid's side does everything a federation does: messages, validation, averaging. The bare loop trains
ten copies of the model on prepared float tensors, and discards them.
"""

from __future__ import annotations

import copy
import tempfile

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord
from torch import Tensor

import client_app.app
from benchmarks.made_up import sites_with
from benchmarks.measure import Claim, Row, compare
from common.config.loading import load
from common.division import Division
from common.draws.seeding import generator
from common.learning.run import Run
from common.learning.training import batches
from common.samples.inputs import Samples
from nectar.engines.local_grid import LocalGrid
from server_app.app import make_strategy
from strategies.exchange.exchange import exchange

CLIENTS, IMAGES, BATCH = 10, 500, 64

#: SCAFFOLD adds a correction to each step, and carries control variates both ways and in the sites' memory
CLAIMS = {"fedavg": 1.1, "scaffold": 1.2}


def rows(pairs: int) -> list[Row]:
    """Measure each method against the bare loop."""
    return [_row(method, at_most, pairs) for method, at_most in CLAIMS.items()]


def _row(method: str, at_most: float, pairs: int) -> Row:
    with tempfile.TemporaryDirectory() as directory:
        config = _config(method, directory)
        made = Division(load(config)).run
        model = made.build_model()
        parameters = sum(p.numel() for p in model.parameters())
        data = [_samples(made, k) for k in range(CLIENTS)]
        floats = [(s.inputs(slice(None)), s.labels) for s in data]

        def bare(pair: int) -> None:
            _bare_loop(model, floats, pair)

        with sites_with(data):
            strategy = make_strategy(made)
            strategy.record_id = "benchmark"
            grid = LocalGrid(client_app.app.app, CLIENTS, config)
            start = ArrayRecord(model.state_dict())

            def one_round(pair: int) -> None:
                messages = strategy.configure_train(pair, start, ConfigRecord(), grid)
                most = strategy.max_reply_bytes
                replies = exchange(grid, messages, deadline=3600.0, max_bytes=most)
                arrays, _ = strategy.aggregate_train(pair, replies)
                assert arrays is not None

            name = f"{method} round, CNN of {parameters:,}"
            return compare(name, bare, one_round, pairs=pairs, claim=Claim(at_most=at_most))


def _config(method: str, directory: str) -> dict[str, str | int | float | bool]:
    return {
        "method": method,
        "dataset": "cifar10",
        "output-dir": directory,
        "data-dir": directory,
        "set": f"model.name=cnn fedavg.batch={BATCH} fedavg.epochs=1 federation.sites={CLIENTS} "
        f"evaluation.on=none compute.client_cores={torch.get_num_threads()} compute.device=cpu",
    }


def _samples(made: Run, k: int) -> Samples:
    rng = generator(0, "benchmark", k)
    channels = made.info.shape[0]
    shape = (IMAGES, *made.info.shape)
    return Samples(
        torch.randint(0, 256, shape, generator=rng, dtype=torch.uint8),
        torch.randint(0, len(made.info.classes), (IMAGES,), generator=rng),
        torch.full((channels, 1, 1), 1 / 64.0),
        torch.full((channels, 1, 1), -2.0),
    )


def _bare_loop(start: torch.nn.Module, data: list[tuple[Tensor, Tensor]], pair: int) -> None:
    for k, (images, labels) in enumerate(data):
        model = copy.deepcopy(start).train()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
        order = generator(0, "local-training", pair, f"partition-{k}")
        for positions in batches(IMAGES, BATCH, order, torch.device("cpu")):
            optimiser.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(images[positions]), labels[positions])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
