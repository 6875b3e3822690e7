"""A round of many devices with next to nothing to do, where what surrounds a step is what costs, against the bare loop.

A hundred devices of five images each train an MLP of 30 hidden units, for one step or ten. The bare loop loads the
round's weights into one model for each of them, takes the same steps, and keeps the sum of what they end with. Ours is
a round of the in-process engine: messages there and back, checks on arrival, judging, averaging. Both on one core, as a
device has one (``compute.client_cores``): the loop left to itself takes all there are, and CPU seconds count each. In
CPU seconds. Ten steps are held to a bound; of a single one, of which nearly all is around it, the ratio is stated.
"""

from __future__ import annotations

import tempfile
import time

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord
from torch import Tensor

import client_app.app
from benchmarks.made_up import sites_with
from benchmarks.measure import Claim, Row, compare, threads
from common.config.loading import load
from common.division import Division
from common.draws.seeding import generator
from common.learning.run import Run
from common.samples.inputs import Samples
from nectar.engines.local_grid import LocalGrid
from server_app.app import make_strategy
from strategies.exchange.exchange import exchange

CLIENTS, IMAGES = 100, 5

#: passes over the five images, which are as many steps, and what of the loop's seconds ours may take
CLAIMS = {1: Claim(), 10: Claim(at_most=1.5)}

#: how many devices train together (``compute.batched``)
TOGETHER = ("off", "auto")


def rows(pairs: int) -> list[Row]:
    """Measure rounds of one step and of ten steps a device, one by one and trained together."""
    with threads(1):
        return [
            _row(epochs, together, claim, pairs)
            for together in TOGETHER
            for epochs, claim in CLAIMS.items()
        ]


def _row(epochs: int, together: str, claim: Claim, pairs: int) -> Row:
    with tempfile.TemporaryDirectory() as directory:
        config = _config(epochs, together, directory)
        made = Division(load(config)).run
        model = made.build_model()
        data = [_samples(made, k) for k in range(CLIENTS)]
        floats = [(s.inputs(slice(None)), s.labels) for s in data]

        def bare(pair: int) -> None:
            _bare_loop(model, start, floats, epochs)

        with sites_with(data):
            strategy = make_strategy(made)
            strategy.record_id = "benchmark"
            app, is_together = client_app.app.app, together != "off"
            grid = LocalGrid(app, CLIENTS, config, trains_together=is_together)
            start = {name: value.clone() for name, value in model.state_dict().items()}
            sent = ArrayRecord(dict(start))

            def one_round(pair: int) -> None:
                messages = strategy.configure_train(pair, sent, ConfigRecord(), grid)
                most = strategy.max_reply_bytes
                replies = exchange(grid, messages, deadline=3600.0, max_bytes=most)
                arrays, _ = strategy.aggregate_train(pair, replies)
                assert arrays is not None

            steps = f"{epochs} step" + "s" * (epochs > 1)
            return compare(
                f"{CLIENTS} small devices, {steps}{', together' * (together != 'off')}",
                bare,
                one_round,
                pairs=pairs,
                claim=claim,
                clock=time.process_time,
            )


def _config(epochs: int, together: str, directory: str) -> dict[str, str | int | float | bool]:
    return {
        "method": "fedavg",
        "dataset": "mnist",
        "output-dir": directory,
        "data-dir": directory,
        "set": f"model.name=mlp model.width=30 fedavg.epochs={epochs} federation.sites={CLIENTS} "
        "evaluation.on=none compute.client_cores=1 compute.device=cpu "
        f"compute.batched={together}",
    }


def _samples(made: Run, k: int) -> Samples:
    rng = generator(0, "benchmark", k)
    return Samples(
        torch.randint(0, 256, (IMAGES, *made.info.shape), generator=rng, dtype=torch.uint8),
        torch.randint(0, len(made.info.classes), (IMAGES,), generator=rng),
        torch.full((made.info.shape[0], 1, 1), 1 / 64.0),
        torch.full((made.info.shape[0], 1, 1), -2.0),
    )


def _bare_loop(
    model: torch.nn.Module,
    start: dict[str, Tensor],
    data: list[tuple[Tensor, Tensor]],
    epochs: int,
) -> dict[str, Tensor]:
    model.train()
    total = {name: torch.zeros_like(value) for name, value in start.items()}
    for images, labels in data:
        model.load_state_dict(start)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(epochs):
            optimiser.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(images), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        for name, value in model.state_dict().items():
            total[name] += value
    return total
