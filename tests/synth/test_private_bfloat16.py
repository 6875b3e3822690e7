"""Forward passes in bfloat16 under differential privacy: clip, sum and noise are float32's all the same.

A sum that is rounded to bfloat16 moves by 4 where 512 ones become 513, or not at all: the clip would bound nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from matching import distil_privately
from seeds import rng
from torch import Tensor, nn

from common.draws.private_draws import SeededRows
from common.learning.compute import autocast
from common.learning.training import Gradients, dp_sgd, train
from common.models import build
from common.settings.fedavg import FedAvgSettings
from synth.diffusion import Schedule
from synth.diffusion_training import DiffusionTraining, Plan, PrivateDescent
from synth.private_matching import Mechanism, PoissonClasses
from synth.private_release import Gaussian, clipped_sum
from synth.unet import UNet

CLIP = 0.7
MECHANISM = Gaussian(1.0, CLIP, torch.zeros)
CPU = torch.device("cpu")


def network() -> nn.Module:
    return build("convnet", (2, 8, 8), 3, depth=2, width=4, generator=rng())


def values(sums: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: MECHANISM.values(steps) for name, steps in sums.items()}


def length(slopes: dict[str, Tensor]) -> float:
    return float(torch.cat([slope.flatten().double() for slope in slopes.values()]).norm())


def mixed(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The loss as the one local loop hands it to a rule."""
    with autocast(CPU, "bfloat16"):
        return F.cross_entropy(model(x), y)


def whole_pass(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


# ---- DP-SGD -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("objective", "around"), [(mixed, False), (whole_pass, True)])
def test_an_examples_gradient_is_clipped_to_a_float32s_accuracy(
    objective: Callable[..., Tensor], around: bool
) -> None:
    """Whether autocast is the objective's or its caller's: C to 1e-6 of it; bfloat16 has 4e-3."""
    model = network()
    x, y = torch.randn(20, 2, 8, 8, generator=rng(1)), torch.arange(20) % 3
    for i in range(20):
        with torch.autocast("cpu", torch.bfloat16, enabled=around):
            sums = clipped_sum(model, objective, (x[i : i + 1], y[i : i + 1]), MECHANISM)
        assert length(values(sums)) == pytest.approx(CLIP, rel=1e-6), "each is longer here"
    exact = clipped_sum(model, whole_pass, (x, y), MECHANISM)
    apart = length(values({name: sums[name] - exact[name] for name in sums}))
    assert apart > 0, "the forward pass is in bfloat16"


@pytest.mark.parametrize(("objective", "around"), [(mixed, False), (whole_pass, True)])
def test_one_of_many_equal_examples_moves_the_sum_by_the_clip(
    objective: Callable[..., Tensor], around: bool
) -> None:
    """By C, as integers add; a sum in float32 keeps 1e-3 of it, one in bfloat16 is off by up to 3.5 C."""
    model = network()
    x, y = torch.randn(1, 2, 8, 8, generator=rng(1)), torch.zeros(1).long()
    sums = []
    for n in (512, 513):
        with torch.autocast("cpu", torch.bfloat16, enabled=around):
            batch = (x.expand(n, -1, -1, -1), y.expand(n))
            sums.append(clipped_sum(model, objective, batch, MECHANISM))
    moved = length(values({name: sums[1][name] - sums[0][name] for name in sums[0]}))
    assert moved == pytest.approx(CLIP, rel=1e-6)


def test_noise_reaches_the_weights_of_a_bfloat16_training_unrounded() -> None:
    """A step on no example moves every weight by lr sigma C / expected times what was drawn, to float32's last bits."""
    model, samples = network(), empty_samples()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    drawn = torch.randn(sum(p.numel() for p in model.parameters()), generator=rng(4))
    rule = dp_sgd(Gaussian(2.0, CLIP, lambda shape: drawn[: math.prod(shape)]), 8.0)
    settings = FedAvgSettings(lr=0.5)
    none = torch.zeros(0).long()
    task: Any = SimpleNamespace(loss=F.cross_entropy)
    by = Gradients(rule, [none])
    train(model, samples, settings, task, rng(), gradients=by, precision="bfloat16")
    moved = torch.cat([(before[n] - p.detach()).flatten() for n, p in model.named_parameters()])
    torch.testing.assert_close(moved, 0.5 * 2.0 * CLIP / 8.0 * drawn, rtol=1e-5, atol=2e-7)


def empty_samples() -> Any:
    """Stand in for a site's samples, of which this step draws none."""
    x, y = torch.zeros(0, 2, 8, 8), torch.zeros(0).long()

    class Samples:
        labels = y

        def __len__(self) -> int:
            return 1

        def inputs(self, positions: Tensor) -> Tensor:
            return x[positions]

    return Samples()


# ---- a diffusion model --------------------------------------------------------------------------------


def gradients_of_a_step(precision: torch.dtype, count: int) -> dict[str, Tensor]:
    """Return what a private step leaves for the optimizer, of ``count`` images, without noise and divided by 1."""
    model = UNet((1, 8, 8), 2, rng(), width=8, multipliers=(1, 2), blocks=1, attention=(1,))
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(0, 0.05, generator=rng(3))
    x, y = torch.rand(4, 1, 8, 8, generator=rng(1)) * 2 - 1, torch.arange(4) % 2
    private = PrivateDescent(
        2,
        4,
        sample=lambda step, rate: torch.arange(count),
        rows=lambda step, at: SeededRows(step, at.numpy().astype(np.uint64), CPU),
        gaussian=lambda step: Gaussian(0.0, CLIP, lambda shape: torch.full(tuple(shape), math.nan)),
    )
    plan = Plan(batch=1, lr=1e-3, precision=precision)
    schedule = Schedule.cosine(100)
    training = DiffusionTraining(model, schedule, x, y, lambda e: rng(100 + e), plan, private)
    found: list[dict[str, Tensor]] = []

    def keep() -> None:
        slopes = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        found.append({name: slope.clone() for name, slope in slopes.items()})

    list(training.run(1, after_step=keep))
    return found[0]


@pytest.mark.extended
def test_a_private_diffusion_step_in_bfloat16_is_clipped_to_a_float32s_accuracy() -> None:
    found = gradients_of_a_step(torch.bfloat16, 1)
    exact = gradients_of_a_step(torch.float32, 1)
    assert length(found) == pytest.approx(CLIP, rel=1e-6)
    apart = length({name: found[name] - exact[name] for name in exact})
    assert 0 < apart < 0.1 * CLIP, "the same gradient, but for a forward pass in bfloat16"
    assert any(bool((g != g.bfloat16()).any()) for g in found.values()), "its sum is not rounded"


# ---- distribution matching ----------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["gradient", "feature"])
def test_one_of_many_equal_images_moves_the_synthetic_ones_as_in_float32(
    mechanism: Mechanism,
) -> None:
    """One of 512 more moves the step as far as in float32, but for float32's own roundings of the whole step.

    A sum kept in bfloat16 would move it not at all, or four times as far.
    """
    model = network()
    real = torch.randn(1, 2, 8, 8, generator=rng(2)).expand(513, -1, -1, -1)
    start = torch.randn(2, 2, 8, 8, generator=rng(3))
    batches = PoissonClasses.plan(torch.zeros(513).long(), 513)

    def moved(n: int, precision: torch.dtype) -> Tensor:
        made = distil_privately(
            model,
            lambda at: real[at],
            batches,
            start,
            mechanism=mechanism,
            gaussian=Gaussian(0.0, 1e-3, lambda shape: torch.zeros(tuple(shape))),
            sample=lambda rates: torch.arange(n),
            iterations=1,
            image_lr=513.0,
            image_momentum=0.0,
            rho=0.0,
            generator=rng(9),
            real_precision=precision,
        )
        assert made.dtype == torch.float32
        return (made - start).double()

    found, exact = (
        float((moved(513, precision) - moved(512, precision)).norm())
        for precision in (torch.bfloat16, torch.float32)
    )
    rounded = 6 * 2**-24 * float(moved(513, torch.float32).norm())
    assert rounded < exact / 2, "or this shows nothing"
    assert found == pytest.approx(exact, rel=0, abs=rounded + 1e-2 * exact)
    if mechanism == "gradient":  # the step is the clipped sum itself
        assert found == pytest.approx(1e-3, rel=2e-2)
