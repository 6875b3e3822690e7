"""DP-SGD for a diffusion model: one gradient of all noised versions of an example, and as many steps as are charged."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from seeds import rng
from torch import Tensor

from common.draws.private_draws import SeededRows
from synth.diffusion import Schedule, denoising_losses
from synth.diffusion_training import DiffusionTraining, Plan, PrivateDescent, steps_of
from synth.private_release import Gaussian
from synth.unet import UNet

SCHEDULE = Schedule.cosine(100)


def tiny() -> UNet:
    """Return a small U-Net with attention, none of whose layers is still 0."""
    model = UNet((1, 8, 8), 2, rng(), width=8, multipliers=(1, 2), blocks=1, attention=(1,))
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(0, 0.05, generator=rng(3))
    return model


def images(n: int) -> tuple[Tensor, Tensor]:
    return torch.rand(n, 1, 8, 8, generator=rng(1)) * 2 - 1, torch.arange(n) % 2


def rows(step: int, at: Tensor) -> SeededRows:
    return SeededRows(step, at.numpy().astype(np.uint64), torch.device("cpu"))


def by_clip(clip: float) -> Gaussian:
    return Gaussian(0.0, clip, lambda shape: torch.full(tuple(shape), math.nan))


def descent(clip: float = math.inf, multiplicity: int = 3, **changes: Any) -> PrivateDescent:
    given: dict[str, Any] = {
        "examples": 10,
        "sample": lambda step, rate: torch.arange(10),
        "rows": rows,
        "gaussian": lambda step: by_clip(clip),
    }
    return PrivateDescent(multiplicity, **{**given, **changes})


@pytest.mark.parametrize("clip", [math.inf, 0.5])
def test_an_examples_gradient_is_the_mean_over_its_noised_versions_and_clipped_once(
    clip: float,
) -> None:
    """Against autograd, one image and three (t, eps) at a time, drawn as the step draws them."""
    model, (x, y) = tiny(), images(4)
    found = descent(clip).slopes(
        model, SCHEDULE, x, y, step=0, expected=8.0, rows=rows(0, torch.arange(4))
    )
    drawn = rows(0, torch.arange(4))
    t = (drawn.uniform(3) * SCHEDULE.steps).long() + 1
    eps = drawn.normal(3, 1, 8, 8)
    named, sums = dict(model.named_parameters()), {}
    for i in range(4):
        each = [
            denoising_losses(
                model, SCHEDULE, x[i : i + 1], y[i : i + 1], t[i, k : k + 1], eps[i, k : k + 1]
            )
            for k in range(3)
        ]
        slopes = torch.autograd.grad(torch.cat(each).mean(), list(named.values()))
        length = float(torch.cat([slope.flatten() for slope in slopes]).norm())
        assert length > 0.5
        for name, slope in zip(named, slopes, strict=True):
            sums[name] = sums.get(name, 0) + min(1, clip / length) * slope
    for name, total in sums.items():
        torch.testing.assert_close(found[name], total / 8, rtol=1e-4, atol=1e-6)


def test_a_training_takes_the_steps_that_it_is_charged_for() -> None:
    """Ten images in samples of four: ceil(10 e / 4) steps after e epochs, each numbered once, at rate 0.4."""
    asked: list[tuple[int, float]] = []

    def sample(step: int, rate: float) -> Tensor:
        asked.append((step, rate))
        return torch.arange(10 if step % 2 else 0)

    plan = Plan(batch=4, lr=1e-3)
    private = descent(0.5, sample=sample)
    training = DiffusionTraining(
        tiny(), SCHEDULE, *images(10), lambda e: rng(100 + e), plan, private
    )
    ends = []
    for loss in training.run(4):
        assert math.isnan(loss), "the loss is private"
        ends.append(len(asked))
    assert ends == [steps_of(e, 10, 4) for e in (1, 2, 3, 4)] == [3, 5, 8, 10]
    assert asked == [(step, 0.4) for step in range(10)]
    assert steps_of(500, 5000, 256) == 9766
    assert steps_of(3, 2, 256) == 3, "a smaller site draws all in each"


@pytest.mark.extended
def test_one_that_is_broken_off_goes_on_with_the_step_that_was_next() -> None:
    """To the bit, where its draws are the steps' own."""

    def new() -> DiffusionTraining:
        private = descent(
            0.5,
            sample=lambda step, rate: (
                (torch.rand(10, generator=rng(step)) < rate).nonzero().flatten()
            ),
            gaussian=lambda step: Gaussian(
                1.0, 0.5, lambda shape: torch.randn(tuple(shape), generator=rng(1000 + step))
            ),
        )
        plan = Plan(batch=4, lr=1e-3)
        return DiffusionTraining(
            tiny(), SCHEDULE, *images(10), lambda e: rng(100 + e), plan, private
        )

    whole = new()
    states: list[dict[str, Tensor]] = []
    list(whole.run(2, after_step=lambda: states.append(whole.state())))
    later = new()
    later.load(states[1])
    list(later.run(2))
    for name, value in whole.state().items():
        assert torch.equal(later.state()[name], value), name
