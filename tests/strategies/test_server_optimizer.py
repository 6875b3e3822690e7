"""The server's optimiser takes the steps of Flower's strategies of the same name, and goes with any method."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from federation import numbers, run
from small import Small
from tiny import Tiny

from server_app.checkpoint import Checkpoint

OURS_AND_FLOWERS = {
    "avgm": (
        "fedavg.server_lr=0.5 fedavg.server_momentum=0.9",
        "FedAvgM",
        "strategy.server_learning_rate=0.5 strategy.server_momentum=0.9",
    ),
    "adam": (
        "fedavg.server_optimizer=adam fedavg.server_lr=0.02 fedavg.server_tau=0.01",
        "FedAdam",
        "strategy.eta=0.02 strategy.tau=0.01",
    ),
    "yogi": (
        "fedavg.server_optimizer=yogi fedavg.server_lr=0.02 fedavg.server_tau=0.01",
        "FedYogi",
        "strategy.eta=0.02 strategy.tau=0.01",
    ),
}


@pytest.mark.extended
@pytest.mark.parametrize("name", OURS_AND_FLOWERS)
def test_the_steps_are_flowers(small: Small, name: str) -> None:
    ours, strategy, flowers = OURS_AND_FLOWERS[name]
    one = run(small(method="fedavg", rounds=3, set=ours))
    other = run(small(method=f"flwr.serverapp.strategy:{strategy}", rounds=3, set=flowers))
    here, there = (Checkpoint.load(r.last).weights for r in (one, other))
    for key in there:
        torch.testing.assert_close(here[key], there[key], rtol=1e-4, atol=1e-6)
    plain = Checkpoint.load(run(small(method="fedavg", rounds=3)).last).weights
    assert any(not torch.allclose(plain[key], here[key], atol=1e-3) for key in plain)


def test_momentum_by_hand_through_a_restart(tmp_path: Path) -> None:
    """FedAvg moves by Delta = (2 - w) 3/4: v = 1.5; Delta = 0.375, v = 1.5/2 + 0.375 = 1.125; w = 2.625."""
    tiny = Tiny(tmp_path, "fedavg", "server_momentum=0.5")
    assert tiny.round(1) == 1.5
    tiny.restart()
    assert tiny.round(2) == 2.625


def test_running_statistics_are_averaged_and_not_stepped(small: Small) -> None:
    given = "model.norm=batch federation.sites=2"
    stepped = "fedavg.server_lr=0.5"
    one, other = (
        Checkpoint.load(run(small(method="fedavg", rounds=1, set=f"{given} {more}")).last).weights
        for more in (stepped, "")
    )
    for name in one:
        equal = torch.equal(one[name], other[name])
        assert equal == ("running" in name or "num_batches" in name), name


@pytest.mark.extended
def test_it_goes_with_every_method_whose_devices_train(small: Small) -> None:
    for method in ("fedprox", "scaffold", "topk"):
        given = f"{method}.server_optimizer=adam {method}.server_lr=0.01"
        plain, adam = (numbers(run(small(method=method, rounds=1, set=s))) for s in ("", given))
        assert plain[1]["train"] == adam[1]["train"]
        assert plain[1]["test"] != adam[1]["test"]
