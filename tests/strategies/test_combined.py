"""Any two pieces of local training go together: a penalty with corrected steps, an objective with another rule."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from federation import run
from small import Small
from tiny import Tiny
from torch import Tensor, nn

from client_app import local_training
from common.learning.training import Gradients, Objective
from server_app.checkpoint import Checkpoint


def test_fedproxs_pull_with_scaffolds_control_variates_by_hand(tmp_path: Path) -> None:
    """Two steps w <- w - 1/2 ((w - a) + mu (w - w_r) + c - c_k), mu = 1/2; exact in any precision.

    Round 1, c = c_k = 0: w = a/2, then a/2 - 1/2 (-a/2 + a/4): w_k = 5/8 a = 0.625, 1.875, their mean 1.25;
    c_k+ = (0 - w_k) / (2 * 1/2), the pull included; c = -1.25.
    Round 2 from 1.25, c - c_k = -0.625, 0.625.
    Site 0: 1.25 - 1/2 (0.25 - 0.625) = 1.4375; 1.4375 - 1/2 (0.4375 + 0.09375 - 0.625) = 1.484375.
    Site 1: 1.25 - 1/2 (-1.75 + 0.625) = 1.8125; 1.8125 - 1/2 (-1.1875 + 0.28125 + 0.625) = 1.953125.
    c_k+ = c_k - c + (1.25 - w_k) = 0.625 - 0.234375, -0.625 - 0.703125; c = (0.390625 - 1.328125)/2.
    """
    tiny = Tiny(tmp_path, "pulled_scaffold:METHOD")
    assert (tiny.round(1), control(tiny)) == (1.25, -1.25)
    assert (tiny.round(2), control(tiny)) == ((1.484375 + 1.953125) / 2, -0.46875)
    assert [float(tiny.remembered(i)) for i in (0, 1)] == [0.390625, -1.328125]


def test_without_a_pull_it_is_scaffold_to_the_bit(tmp_path: Path) -> None:
    one, other = (
        Tiny(tmp_path / str(i), method, settings)
        for i, (method, settings) in enumerate(
            [("pulled_scaffold:METHOD", "mu=0.0"), ("scaffold", "")]
        )
    )
    for number in (1, 2, 3):
        assert one.round(number) == other.round(number)
        assert control(one) == control(other)


def control(tiny: Tiny) -> float:
    """Return the server's c."""
    return float(tiny.strategy.state_dict()["control"]["head.weight"])


class Clipped:
    """Each example's gradient, cut to a length, summed and divided by the batch's size: DP-SGD's without its noise."""

    def __init__(self, longest: float) -> None:
        self.longest = longest
        self.norms: list[float] = []

    def __call__(
        self, model: nn.Module, objective: Objective, x: Tensor, targets: Tensor, at: Tensor
    ) -> Tensor:
        """Leave the mean of the cut gradients in ``grad``; return the mean loss."""
        parameters, total = list(model.parameters()), torch.zeros(())
        sums = [torch.zeros_like(p) for p in parameters]
        for i in range(len(x)):
            loss = objective(model, x[i : i + 1], targets[i : i + 1], at[i : i + 1])
            gradients = torch.autograd.grad(loss, parameters)
            norm = float(torch.stack([g.norm() for g in gradients]).norm())
            self.norms.append(norm)
            for have, gradient in zip(sums, gradients, strict=True):
                have.add_(gradient, alpha=min(1.0, self.longest / norm))
            total += loss.detach()
        for p, have in zip(parameters, sums, strict=True):
            p.grad = have / len(x)
        return total / len(x)


@pytest.mark.extended
@pytest.mark.parametrize("longest", [math.inf, 0.5])
@pytest.mark.usefixtures("smooth")
def test_moons_objective_under_a_rule_of_single_examples(
    small: Small, monkeypatch: pytest.MonkeyPatch, longest: float
) -> None:
    """With an infinite clip, plain's batches and divisor it is plain training to 1e-6, two rounds deep; else not."""
    given = small(
        method="moon",
        set="moon.mu=5.0 model.projection=8 model.depth=2 data.images=300 fedavg.batch=16 fedavg.lr=0.1",
    )
    plain = Checkpoint.load(run(given).last).weights
    rule = Clipped(longest)

    def gradients(client: Any, *_: Any) -> Any:
        return client.generator("local-training"), Gradients(rule)

    monkeypatch.setattr(local_training, "_gradients", gradients)
    by_example = Checkpoint.load(run(given).last).weights
    apart = max(float((by_example[name] - plain[name]).abs().max()) for name in plain)
    assert max(rule.norms) > 1
    assert (apart < 1e-6) == (longest == math.inf), apart


# ---- FedProx -----------------------------------------------------------------------------------------


def test_two_rounds_by_hand(tmp_path: Path) -> None:
    """g = (w - a) + mu (w - w_r), mu = 1, eta = 1/2.

    Round 1: w_k = a/2, and there g = -a/2 + a/2 = 0; the mean of 1/2 and 3/2 is 1.
    Round 2: as round 1 in coordinates around 1: w_k = 1 + (a - 1)/2; the mean of 1 and 2 is 3/2.
    """
    tiny = Tiny(tmp_path, "fedprox", "mu=1.0")
    assert [tiny.round(1), tiny.round(2)] == [1.0, 1.5]
