"""Rounds in one process against pfl-research's of the same model, data and steps: CPU seconds on one thread.

``PYTHONPATH=PFL:. python -m benchmarks.pfl_research``, where PFL is a checkout of github.com/apple/pfl-research, with
multiprocess, dp-accounting, prv-accountant and scipy. Both run unedited in one process, so with the same malloc, and in
turn; the weights after a round of FedAvg are compared first. Theirs has torch's own layers, as its users write them.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.algorithm_utils import run_train_eval
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from benchmarks import fedavg_round, small_devices
from benchmarks.made_up import InProcess, RunConfig, in_process
from benchmarks.measure import LEAST_PAIRS, Claim, Row, compare, table, threads
from common.models.pooling import MaxPool2d

BATCH, LR = 64, 0.01


class _Model(nn.Module):
    """A network as pfl-research takes it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.network.train()
        return F.cross_entropy(self.network(x), y)

    def metrics(self, *batch: Tensor) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class Peer:
    """pfl-research's federation: a callable that carries out the next round, and the network that it changes."""

    one_round: Callable[[int], None]
    network: nn.Module


def peer_of(ours: InProcess, method: str, epochs: int) -> Peer:
    """Return pfl-research's federation of the same sites."""
    network, sites = _Model(_of_torch(copy.deepcopy(ours.model))), cycle(range(len(ours.floats)))
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), 1.0))
    data = FederatedDataset(
        lambda k: PyTorchTensorDataset(ours.floats[k], user_id=str(k)), lambda: next(sites)
    )
    backend = SimulatedBackend(
        training_data=data, val_data=None, postprocessors=[WeightByDatapoints()]
    )
    steps = NNTrainHyperParams(
        local_num_epochs=epochs, local_learning_rate=LR, local_batch_size=BATCH
    )
    rounds: dict[str, Any] = {
        "central_num_iterations": 10**9,
        "evaluation_frequency": 10**9,
        "train_cohort_size": len(ours.floats),
        "val_cohort_size": None,
    }
    algorithm, settings = FederatedAveraging(), NNAlgorithmParams(**rounds)
    if method == "scaffold":
        algorithm = SCAFFOLD()
        settings = SCAFFOLDParams(
            **rounds,
            population=len(ours.floats),
            use_gradient_as_control_variate=False,
            user_state_storage=InMemoryUserStateStorage(),
        )

    def one_round(number: int) -> None:
        contexts, _, metrics = algorithm.get_next_central_contexts(
            model, number, settings, steps, None
        )
        results = run_train_eval(algorithm, backend, model, contexts)
        found = tuple((at, sums) for at, (sums, _) in zip(contexts, results, strict=True))
        algorithm.process_aggregated_statistics_from_all_contexts(found, metrics, model)

    return Peer(one_round, network.network)


def _of_torch(model: nn.Module) -> nn.Module:
    """Return ``model`` with torch's max pool in the place of ours, which gives the same values."""
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, MaxPool2d):
                setattr(module, name, nn.MaxPool2d(2))
    return model


def row(name: str, config: RunConfig, method: str, epochs: int, pairs: int) -> Row:
    """Measure a round; ValueError if the two do not end with the same weights."""
    module = fedavg_round if "cnn" in str(config["set"]) else small_devices
    with in_process(config, module.CLIENTS, module.IMAGES) as ours:
        theirs = peer_of(ours, method, epochs)
        theirs.one_round(0)
        mine = ours.one_round(1).to_torch_state_dict()
        gaps = [float((mine[n] - t).abs().max()) for n, t in theirs.network.state_dict().items()]
        if epochs == 1 and module is small_devices and max(gaps) > 1e-6:
            raise ValueError(f"{name}: the weights differ by {max(gaps):.1e}")
        return compare(
            name,
            lambda pair: theirs.one_round(pair + 1),
            lambda pair: ours.one_round(pair + 2),
            pairs=pairs,
            claim=Claim(),
            clock=time.process_time,
        )


def rows(pairs: int) -> list[Row]:
    """Measure rounds of small sites, one by one and together, and of FedAvg and SCAFFOLD on a CNN."""
    found = []
    with threads(1):
        for epochs in (1, 10):
            for together in small_devices.TOGETHER:
                name = f"small sites, steps={epochs} batched={together}"
                config = small_devices.config_of(epochs, together)
                found.append(row(name, config, "fedavg", epochs, pairs))
        for method in fedavg_round.CLAIMS:
            found.append(row(f"{method}, CNN", fedavg_round.config_of(method), method, 1, pairs))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=LEAST_PAIRS)
    print(table(rows(parser.parse_args().pairs)))
