"""A round of many devices with next to nothing to do, where what surrounds a step is what costs, against the bare loop.

A hundred devices of five images each train an MLP of 30 hidden units, for one step or ten. The bare loop loads the
round's weights into one model for each of them, takes the same steps, and keeps the sum of what they end with. Ours is
a round of the in-process engine: messages there and back, checks on arrival, judging, averaging. Both on one core, as a
device has one (``compute.client_cores``): the loop left to itself takes all there are, and CPU seconds count each. In
CPU seconds. Ten steps are held to a bound; of a single one, of which nearly all is around it, the ratio is stated.
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.made_up import RunConfig, in_process
from benchmarks.measure import Claim, Row, compare, threads

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
    with in_process(config_of(epochs, together), CLIENTS, IMAGES) as ours:
        start = {name: value.clone() for name, value in ours.model.state_dict().items()}

        def bare(pair: int) -> None:
            _bare_loop(ours.model, start, ours.floats, epochs)

        steps = f"{epochs} step" + "s" * (epochs > 1)
        return compare(
            f"{CLIENTS} small devices, {steps}{', together' * (together != 'off')}",
            bare,
            ours.one_round,
            pairs=pairs,
            claim=claim,
            clock=time.process_time,
        )


def config_of(epochs: int, together: str) -> RunConfig:
    """Return the configuration of a round of so many steps."""
    return {
        "method": "fedavg",
        "dataset": "mnist",
        "set": f"model.name=mlp model.width=30 fedavg.epochs={epochs} federation.sites={CLIENTS} "
        "evaluation.on=none compute.client_cores=1 compute.device=cpu "
        f"compute.batched={together}",
    }


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
