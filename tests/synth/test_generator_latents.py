"""Latents and what is made of them: what the dataclass refuses, and images as their own latents."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.generators.latents import ImageGenerator, Latents
from synth.generators.pixels import Pixels


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_latents_refuse_what_does_not_belong_together() -> None:
    with pytest.raises(ValueError, match="0 latent tensors with 0 rates"):
        Latents((), ())
    with pytest.raises(ValueError, match="1 latent tensors with 2 rates"):
        Latents((torch.zeros(3, 2),), (1.0, 2.0))
    with pytest.raises(ValueError, match="tensors of 3, 4 rows"):
        Latents((torch.zeros(3, 2), torch.zeros(4, 2)), (1.0, 2.0))


def test_leaves_are_copies_that_a_gradient_step_moves() -> None:
    """d/dz sum z^2 = 2 z: with the rates 1 and 10 and a step of 0.05 both go from 1, to 0.9 and to 0."""
    start = Latents((torch.ones(2, 3), torch.ones(2, 1)), (1.0, 10.0))
    leaves = start.leaves()
    slopes = torch.autograd.grad(sum(t.square().sum() for t in leaves.tensors), leaves.tensors)
    for tensor, slope, rate in zip(leaves.tensors, slopes, leaves.rates, strict=True):
        tensor.data.sub_(0.05 * rate * slope)
    assert leaves.tensors[0].flatten().tolist() == [pytest.approx(0.9)] * 6
    assert leaves.tensors[1].flatten().tolist() == [pytest.approx(0.0)] * 2
    assert all(torch.equal(t, torch.ones_like(t)) for t in start.tensors)
    assert len(leaves) == 2


def test_latents_of_other_values_keep_their_rates() -> None:
    start = Latents((torch.zeros(2, 3),), (7.0,))
    moved = start.holding([torch.ones(2, 3)])
    assert moved.rates == (7.0,)
    assert float(moved.tensors[0].sum()) == 6


@settings(deadline=None)  # a busy machine is no failure
@given(st.integers(0, 5), st.integers(1, 3), st.integers(1, 9), st.integers(0, 2**32))
def test_pixels_go_to_images_and_back(n: int, channels: int, side: int, seed: int) -> None:
    pixels: ImageGenerator = Pixels((channels, side, side))
    start = pixels.latents(torch.zeros(n, dtype=torch.int64), rng(seed))
    images = pixels.images(start)
    assert images.shape == (n, channels, side, side)
    assert torch.equal(pixels.images(start.holding([images])), start.tensors[0])


def test_pixels_begin_with_standard_noise_from_the_generator_alone() -> None:
    labels, before = torch.arange(10).repeat(20), torch.get_rng_state()
    first, again, other = (
        Pixels((1, 8, 8), rate=3.0).latents(labels, rng(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first.tensors[0], again.tensors[0])
    assert not torch.equal(first.tensors[0], other.tensors[0])
    assert first.rates == (3.0,)
    # 12,800 values: the standard errors are 0.009 and 0.006
    assert float(first.tensors[0].mean()) == pytest.approx(0, abs=0.05)
    assert float(first.tensors[0].std()) == pytest.approx(1, abs=0.04)
