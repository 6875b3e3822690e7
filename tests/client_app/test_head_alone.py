"""``model.train=head``: the last layer moves, and nothing else of the model does, to the bit."""

from __future__ import annotations

import pytest
import torch
from federation import last, run
from small import Small

from common.config.loading import load
from common.division import Division

WORDS = "model.train=head fedavg.lr=0.1 partition.alpha=100 topk.rate=2 masking.rate=2"


def require_head_alone(config: dict[str, object]) -> None:
    model = Division(load(config)).run.build_model()
    ended = last(run(config)).weights
    for name, start in model.state_dict().items():
        moved = not torch.equal(ended[name], start)
        assert moved == model.is_of_head(name), name


@pytest.mark.sweep
@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_the_last_layer_alone_is_trained(small: Small, norm: str) -> None:
    """With batch norm: its statistics too stay as they were."""
    require_head_alone(small(method="fedavg", rounds=2, set=f"{WORDS} model.norm={norm}"))


@pytest.mark.extended
@pytest.mark.parametrize(
    "method", ["fedprox", "fednova", "feddyn", "moon", "lowrank", "masking", "topk"]
)
def test_so_it_is_under_every_method_that_takes_it(small: Small, method: str) -> None:
    momentum = "fedavg.momentum=0.9 fedavg.weight_decay=0.01 fedavg.server_momentum=0.5"
    own = "feddyn.server_momentum=0" if method == "feddyn" else ""
    require_head_alone(small(method=method, rounds=2, set=f"{WORDS} {momentum} {own}".strip()))


@pytest.mark.extended
def test_a_private_step_clips_and_noises_the_last_layer_alone(small: Small) -> None:
    """Whose batch norm, in evaluation, couples no examples."""
    private = "privacy.noise_multiplier=1 privacy.counts=public model.norm=batch"
    require_head_alone(small(method="fedavg", rounds=1, set=f"{WORDS} {private}"))
