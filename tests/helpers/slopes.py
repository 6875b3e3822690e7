"""Gradients held against differences."""

from __future__ import annotations

import pytest
import torch
from seeds import rng
from torch import Tensor

from synth.generators.latents import ImageGenerator, Latents


def require_slopes(
    space: ImageGenerator, drawn: Latents, target: Tensor, *, step: float, seed: int, per: int
) -> None:
    """Require that a gradient reaches all of every latent, by their first ``per`` dimensions, and is the difference."""
    latents = drawn.holding([t.detach().double().clone().requires_grad_() for t in drawn.tensors])

    def loss(tensors: list[Tensor]) -> Tensor:
        return (space.images(latents.holding(tensors)) - target).square().sum()

    slopes = torch.autograd.grad(loss(list(latents.tensors)), latents.tensors)
    for i, slope in enumerate(slopes):
        assert bool((slope.flatten(per).abs().sum(per) > 0).all()), "of each"
        way = torch.randn(slope.shape, dtype=torch.float64, generator=rng(seed))
        up, down = (
            loss([t + sign * step * way if j == i else t for j, t in enumerate(latents.tensors)])
            for sign in (1, -1)
        )
        expected = float(up.detach() - down.detach()) / (2 * step)
        assert float((slope * way).sum()) == pytest.approx(expected, rel=1e-4, abs=1e-4)
