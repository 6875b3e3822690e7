"""The forward process and the loss: schedules, noise and losses by hand, the gradient by finite differences."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from seeds import rng
from torch import Tensor

from synth.diffusion import Schedule, denoising_loss, denoising_losses, noised
from synth.unet import UNet


def woken(dtype: torch.dtype) -> UNet:
    """Return a tiny network none of whose layers is 0."""
    sizes = {"width": 4, "multipliers": (1, 2), "blocks": 1, "attention": (1,)}
    model = UNet((1, 4, 4), 2, rng(), **sizes).to(dtype)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3, generator=rng(parameter.numel()))
    return model


def test_the_linear_schedule_by_hand() -> None:
    """beta goes from 1e-4 to 0.02 in 999 steps; half as many steps have twice the betas."""
    schedule = Schedule.linear(1000)
    alpha_bar = schedule.alpha_bar
    assert schedule.steps == 1000
    assert alpha_bar.dtype == torch.float64
    assert alpha_bar[:2].tolist() == [1, pytest.approx(0.9999, rel=1e-12)]
    second = 1e-4 + (0.02 - 1e-4) / 999
    assert float(alpha_bar[2]) == pytest.approx(0.9999 * (1 - second), rel=1e-12)
    logs = math.fsum(math.log1p(-(1e-4 + k * (0.02 - 1e-4) / 999)) for k in range(1000))
    assert float(alpha_bar[1000]) == pytest.approx(math.exp(logs), rel=1e-9)
    assert float(Schedule.linear(500).alpha_bar[1]) == pytest.approx(1 - 2e-4, rel=1e-12)


def test_the_cosine_schedule_by_hand() -> None:
    """T = 2: cos^2 of pi/2 by (0.5 + 0.008) / 1.008, over that at 0; then beta is cut to 0.999."""
    start = math.cos(math.pi / 2 * 0.008 / 1.008) ** 2
    half = math.cos(math.pi / 2 * 0.508 / 1.008) ** 2 / start
    expected = [1, pytest.approx(half, rel=1e-12), pytest.approx(half * 0.001, rel=1e-9)]
    assert Schedule.cosine(2).alpha_bar.tolist() == expected


@given(st.sampled_from(["linear", "cosine"]), st.integers(21, 1500))
@settings(max_examples=30, deadline=None)
def test_a_schedule_only_takes_away(name: str, steps: int) -> None:
    alpha_bar = getattr(Schedule, name)(steps).alpha_bar
    assert len(alpha_bar) == steps + 1
    assert float(alpha_bar[0]) == 1
    assert bool((alpha_bar.diff() < 0).all())
    assert 0 < float(alpha_bar[-1]) < 1e-3


@pytest.mark.parametrize(("name", "steps"), [("linear", 20), ("linear", 0)])
def test_a_schedule_without_room_is_refused(name: str, steps: int) -> None:
    with pytest.raises(ValueError, match=f"not {steps}"):
        getattr(Schedule, name)(steps)


def test_noise_by_hand() -> None:
    """alpha_bar 1, 0.36, 0.04: shares 1 and 0, 0.6 and 0.8, 0.2 and sqrt(0.96)."""
    schedule = Schedule(torch.tensor([1, 0.36, 0.04], dtype=torch.float64))
    x0, eps = torch.full((3, 1, 1, 2), 2.0), torch.full((3, 1, 1, 2), 10.0)
    found = noised(schedule, x0, torch.tensor([1, 0, 2]), eps)
    expected = [1.2 + 8, 2, 0.4 + 10 * math.sqrt(0.96)]
    assert found[:, 0, 0, 0].tolist() == pytest.approx(expected)
    assert found.dtype == torch.float32


def test_losses_by_hand_one_an_example() -> None:
    """A model that says y for every pixel, against eps of 3 and 5, and of 1: squares 9 and 25, then 0."""

    def says_the_class(x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        return torch.zeros_like(x) + y[:, None, None, None]

    eps = torch.tensor([[3.0, 5.0], [1.0, 1.0]]).view(2, 1, 1, 2)
    found = denoising_losses(
        says_the_class,
        Schedule.linear(50),
        torch.zeros(2, 1, 1, 2),
        torch.tensor([0, 1]),
        torch.tensor([1, 50]),
        eps,
    )
    assert found.tolist() == [17, 0]


def test_the_loss_of_the_best_guess_for_standard_normal_images_is_the_mean_share_left() -> None:
    """x_0 ~ N(0, 1): E[eps | x_t] = sqrt(1 - alpha_bar_t) x_t leaves a variance of alpha_bar_t, its mean over t."""
    schedule = Schedule.cosine(40)

    def best(x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        return (1 - schedule.alpha_bar[t]).sqrt()[:, None, None, None] * x

    n = 200_000
    x0 = torch.randn(n, 1, 1, 1, generator=rng(1), dtype=torch.float64)
    loss = denoising_loss(best, schedule, x0, torch.zeros(n).long(), rng(2))
    # a square of a normal number has at most variance 3
    assert float(loss) == pytest.approx(
        float(schedule.alpha_bar[1:].mean()), abs=5 * math.sqrt(3 / n)
    )


def test_the_gradient_is_that_of_finite_differences() -> None:
    """Along a random direction through all parameters at once, in float64."""
    model, schedule = woken(torch.float64), Schedule.linear(100)
    x0 = torch.rand(3, 1, 4, 4, generator=rng(1), dtype=torch.float64) * 2 - 1
    y = torch.tensor([0, 1, 1])
    parameters = list(model.parameters())
    gradient = torch.autograd.grad(denoising_loss(model, schedule, x0, y, rng(5)), parameters)
    way = [torch.randn(p.shape, generator=rng(6), dtype=p.dtype) for p in parameters]
    slope = sum(float((g * v).sum()) for g, v in zip(gradient, way, strict=True))

    def moved(h: float) -> float:
        with torch.no_grad():
            torch._foreach_add_(parameters, way, alpha=h)
            loss = float(denoising_loss(model, schedule, x0, y, rng(5)))
            torch._foreach_add_(parameters, way, alpha=-h)
        return loss

    h = 1e-5
    assert slope == pytest.approx((moved(h) - moved(-h)) / (2 * h), rel=1e-6)
    assert abs(slope) > 1e-3


def test_the_batchs_loss_is_the_mean_of_its_examples_one_by_one() -> None:
    model, schedule = woken(torch.float64), Schedule.linear(100)
    x0 = torch.rand(5, 1, 4, 4, generator=rng(1), dtype=torch.float64)
    y = torch.tensor([0, 1, 1, 0, 1])
    draw = rng(5)
    t = torch.randint(1, 101, (5,), generator=draw)
    eps = torch.randn(x0.shape, generator=draw, dtype=x0.dtype)
    alone = [
        denoising_losses(model, schedule, x0[i : i + 1], y[i : i + 1], t[i : i + 1], eps[i : i + 1])
        for i in range(5)
    ]
    together = denoising_loss(model, schedule, x0, y, rng(5))
    assert float(together) == pytest.approx(sum(map(float, alone)) / 5, rel=1e-12)
