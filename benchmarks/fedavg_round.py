"""One round of FedAvg, and of SCAFFOLD, in the in-process grid against a bare training loop over the same batches.

The grid's side does everything a federation does: messages, validation, averaging. The bare loop trains
ten copies of the model on prepared float tensors, and discards them.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.made_up import RunConfig, in_process
from benchmarks.measure import Claim, Row, compare
from common.draws.seeding import generator
from common.learning.training import batches

CLIENTS, IMAGES, BATCH = 10, 500, 64

#: SCAFFOLD adds a correction to each step, and carries control variates both ways and in the sites' memory
CLAIMS = {"fedavg": 1.1, "scaffold": 1.2}


def rows(pairs: int) -> list[Row]:
    """Measure each method against the bare loop."""
    return [_row(method, at_most, pairs) for method, at_most in CLAIMS.items()]


def _row(method: str, at_most: float, pairs: int) -> Row:
    with in_process(config_of(method), CLIENTS, IMAGES) as ours:
        parameters = sum(p.numel() for p in ours.model.parameters())

        def bare(pair: int) -> None:
            _bare_loop(ours.model, ours.floats, pair)

        name = f"{method} round, CNN of {parameters:,}"
        return compare(name, bare, ours.one_round, pairs=pairs, claim=Claim(at_most=at_most))


def config_of(method: str) -> RunConfig:
    """Return the configuration of a method's round."""
    return {
        "method": method,
        "dataset": "cifar10",
        "set": f"model.name=cnn fedavg.batch={BATCH} fedavg.epochs=1 federation.sites={CLIENTS} "
        f"evaluation.on=none compute.client_cores={torch.get_num_threads()} compute.device=cpu",
    }


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
