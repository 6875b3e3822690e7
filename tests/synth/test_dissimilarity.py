"""Fedssyn's three constants: a site's part against loops over examples, and what the server makes of them by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from seeds import rng
from torch import Tensor, nn

from common.models import build
from synth.dissimilarity import (
    distribution_shift,
    gradient_dissimilarity,
    site_gradient,
)


def network(norm: str = "instance") -> nn.Module:
    return build("convnet", (2, 8, 8), 3, depth=2, width=4, norm=norm, generator=rng(1)).double()


def examples(n: int, seed: int = 3) -> tuple[Tensor, Tensor]:
    images = torch.randn(n, 2, 8, 8, dtype=torch.float64, generator=rng(seed))
    return images, torch.randint(3, (n,), generator=rng(seed + 1))


def in_a_loop(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean gradient and the mean square around it, from one backward pass an example."""
    rows = []
    for image, label in zip(images, labels, strict=True):
        loss = F.cross_entropy(model(image[None]), label[None])
        parts = torch.autograd.grad(loss, list(model.parameters()))
        rows.append(torch.cat([part.flatten() for part in parts]))
    gradients = torch.stack(rows)
    mean = gradients.mean(0)
    return mean, (gradients - mean).square().sum(1).mean()


@pytest.mark.parametrize("norm", ["instance", "batch"])
@pytest.mark.parametrize("chunk", [0, 1, 3, 7])
def test_a_sites_part_against_a_loop_over_its_examples(norm: str, chunk: int) -> None:
    model = network(norm).eval()
    images, labels = examples(7)
    mean, noise = in_a_loop(model, images, labels)
    found = site_gradient(model, F.cross_entropy, images.__getitem__, labels, chunk=chunk)
    torch.testing.assert_close(found.mean, mean, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.noise, noise, rtol=1e-9, atol=0)
    assert all(p.grad is None for p in model.parameters())


class Line(nn.Module):
    """w x + v, where v is not trained."""

    def __init__(self, w: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(w))
        self.v = nn.Parameter(torch.tensor(0.0), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x + self.v


def half_square(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (outputs - targets).square().mean()


def test_a_sites_part_by_hand() -> None:
    """dF/dw = (w x - y) x at w = 1: (1, 0) gives 1, (2, 0) gives 4, a mean of 2.5 and 1.5^2 around it."""
    x, y = torch.tensor([1.0, 2.0]), torch.zeros(2)
    found = site_gradient(Line(1.0), half_square, x.__getitem__, y)
    assert found.mean.tolist() == [2.5]
    assert float(found.noise) == 2.25


@pytest.mark.parametrize("chunk", [0, 1])
def test_small_differences_of_large_gradients_are_not_lost(chunk: int) -> None:
    """Gradients 10,000 and 10,001 in float32, whose squares differ by less than their last digits: noise 1/4."""
    c = torch.tensor([10_000.0, 10_001.0])
    found = site_gradient(
        Line(1.0), lambda wx, y: wx.mean(), c.__getitem__, torch.zeros(2), chunk=chunk
    )
    assert float(found.mean) == 10_000.5
    assert float(found.noise) == pytest.approx(0.25, rel=1e-2)


def test_a_site_is_interrupted_between_chunks_and_refused_without_examples() -> None:
    calls = []
    x = torch.ones(5)
    site_gradient(
        Line(1.0), half_square, x.__getitem__, x, chunk=2, before_chunk=lambda: calls.append(1)
    )
    assert len(calls) == 3
    with pytest.raises(ValueError, match="0 examples and 1 trainable"):
        site_gradient(Line(1.0), half_square, x.__getitem__, x[:0])
    with pytest.raises(ValueError, match="5 examples and 0 trainable"):
        site_gradient(Line(1.0).requires_grad_(False), half_square, x.__getitem__, x)


def test_the_servers_constants_by_hand() -> None:
    """Gradients (0, 0) and (2, 4) lie 1 + 4 from (1, 2); the synthetic ones' mean (4, 6) lies 9 + 16 from it."""
    means = torch.tensor([[0.0, 0.0], [2.0, 4.0]])
    assert float(gradient_dissimilarity(means)) == 5
    assert float(distribution_shift(means, torch.tensor([[4.0, 5.0], [4.0, 7.0]]))) == 25


@settings(deadline=None, max_examples=20)  # a busy machine is no failure
@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 99))
def test_noise_and_dissimilarity_add_up_to_the_noise_of_all_examples(
    sites: int, each: int, seed: int
) -> None:
    """The law of total variance: sigma^2 + zeta^2 = sigma_avg^2 where all sites have equally many examples."""
    model = network()
    images, labels = examples(sites * each, seed)
    parts = [
        site_gradient(model, F.cross_entropy, x.__getitem__, y)
        for x, y in zip(images.split(each), labels.split(each), strict=True)
    ]
    together = site_gradient(model, F.cross_entropy, images.__getitem__, labels)
    means = torch.stack([part.mean for part in parts])
    torch.testing.assert_close(
        torch.stack([part.noise for part in parts]).mean() + gradient_dissimilarity(means),
        together.noise,
        rtol=1e-9,
        atol=1e-12,
    )
