"""FedMix: its loss by hand and by differences, what travels when, and FedAvg where nothing is mixed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from federation import TamperedGrid, numbers, run
from small import Small
from tampering import with_arrays
from torch import nn

from client_app.fedmix import mixed
from common.learning.task import Classification
from common.storage import tensor_file
from server_app.checkpoint import Checkpoint

MIX = "fedmix.mean_of=5 fedmix.means=4"


def test_the_loss_by_finite_differences() -> None:
    """The last term is the derivative of the mean loss along the means, here in float64 by central differences."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    x, means = torch.randn(5, 1, 2, 2).double(), torch.randn(5, 1, 2, 2).double()
    y, soft = torch.tensor([0, 1, 2, 2, 1]), torch.rand(5, 3).double().softmax(1)
    task, share, step = Classification(3), 0.3, 1e-6
    near = 0.7 * x
    along = (task.loss(net(near + step * means), y) - task.loss(net(near - step * means), y)) / (
        2 * step
    )
    expected = 0.7 * task.loss(net(near), y) + 0.3 * task.loss(net(near), soft) + 0.3 * along
    found = mixed(task, net, x, y, means, soft, share)
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-8)


def test_the_gradient_reaches_the_weights_through_the_slope() -> None:
    """Of one weight w and the loss w x: d/dw [(1-l) w x' + l w x' + l w xbar] = x' + l xbar."""

    class Sum(Classification):
        def loss(self, outputs: Any, targets: Any, weights: Any = None) -> Any:
            return outputs.mean()

    net = nn.Linear(1, 1, bias=False)
    x, mean = torch.tensor([[2.0]]), torch.tensor([[10.0]])
    mixed(Sum(2), net, x, torch.tensor([0]), mean, torch.tensor([[1.0, 0.0]]), 0.25).backward()
    assert float(net.weight.grad) == pytest.approx(0.75 * 2 + 0.25 * 10)  # type: ignore[arg-type]


@pytest.mark.extended
def test_means_travel_once_to_the_server_and_once_to_each_site(small: Small) -> None:
    record = run(small(method="fedmix", rounds=4, set=MIX))
    plain = run(small(method="fedavg", rounds=4))
    image = 64  # 8 x 8
    up = [
        n["floats_up"] - p["floats_up"]
        for n, p in zip(numbers(record), numbers(plain), strict=True)
    ]
    assert up == [0, 3 * 4 * image, 0, 0, 0]
    more = [
        sum(n["bytes"]["down"].values()) - sum(p["bytes"]["down"].values())
        for n, p in zip(numbers(record), numbers(plain), strict=True)
    ]
    every = 3 * 12 * (image + 10) * 4
    assert every < more[2] < every + 10_000
    assert max(more[1], more[3], more[4]) < 2_000


def test_what_leaves_is_a_mean_of_so_many_and_never_of_fewer(small: Small) -> None:
    record = run(small(method="fedmix", rounds=1, set="fedmix.mean_of=7 fedmix.means=1000"))
    kept = Checkpoint.load(record.last).strategy
    held = json.loads((record.directory / "partition.json").read_text())["sites"]
    for site, labels in kept["labels"].items():
        shares = labels * 7
        torch.testing.assert_close(shares, shares.round(), rtol=0, atol=1e-5)
        torch.testing.assert_close(labels.sum(1), torch.ones(len(labels)))
        assert len(labels) == held[site]["examples"] // 7
    none = run(small(method="fedmix", rounds=2, set="fedmix.mean_of=2000"))
    assert Checkpoint.load(none.last).strategy["labels"] == {}
    assert [n["rejected"] for n in none.metrics()] == [{}, {}, {}]


def test_mixing_changes_rounds_from_the_second_on(small: Small) -> None:
    mix, plain = (
        [n["test"]["loss"] for n in numbers(run(small(method=m, rounds=2, set=s)))]
        for m, s in (("fedmix", f"{MIX} fedmix.mix=0.2"), ("fedavg", ""))
    )
    assert mix[:2] == plain[:2]
    assert mix[2] != plain[2]


@pytest.mark.extended
def test_a_site_whose_reply_was_not_taken_is_asked_and_sent_again(small: Small) -> None:
    """NaN from site 1 in rounds 1 and 3: its means come in round 2; the means of the others come to it again."""
    spoiled = with_arrays(
        lambda a: [x if i != 2 else np.full_like(x, np.nan) for i, x in enumerate(a)]
    )

    def sometimes(message: Any, reply: Any) -> Any:
        return spoiled(message, reply) if message.metadata.group_id in "13" else reply

    config = small(method="fedmix", rounds=5, set=MIX)
    record = run(config, TamperedGrid, tampers={1: sometimes})
    lines = record.metrics()
    assert [list(n["rejected"]) for n in lines] == [
        [],
        ["partition-1"],
        [],
        ["partition-1"],
        [],
        [],
    ]
    kept = Checkpoint.load(record.last).strategy
    assert kept["held"] == dict.fromkeys(kept["labels"], 3)
    assert len(kept["labels"]) == 3
    versions = sorted((record.directory / "state").rglob("000005.safetensors"))
    assert len(versions) == 3
    assert all(len(tensor_file.load(v)[0]["/images"]) == 12 for v in versions)
