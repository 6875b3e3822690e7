"""The training of the style-based generator: its loss against torch's normals, and what it learns of two classes."""

from __future__ import annotations

import math

import pytest
import torch
from seeds import rng
from style_training import Encoder, Plan, begin, negative_bound, train_prior
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from synth.generators.style import Form

FORM = Form((1, 4, 4), 2, width=8, depth=1, latent=4)
BRIEF = Plan(steps=3, batch=8)


def halves(n: int) -> tuple[Tensor, Tensor]:
    """Return dark images with a half of one brightness in -0.2 to 0.8: the left one in class 0, the right one in 1."""
    labels = torch.arange(n) % 2
    images = torch.full((n, 1, 4, 4), -0.8)
    brightness = torch.rand(n, 1, 1, 1, generator=rng(5)) - 0.2
    left = torch.tensor([1.0, 1.0, 0.0, 0.0])
    bright = torch.where(labels[:, None] == 0, left, 1 - left)[:, None, None, :]
    return images + bright * (brightness + 0.8), labels


def test_the_loss_by_hand() -> None:
    """(0.3, -0.1) off by a deviation of 0.1: (0.09 + 0.01) / 0.02 = 5; mu 0.5, sigma_z^2 e: (0.25 + e - 2) / 2."""
    x = torch.tensor([[[[0.3, -0.1]]]])
    found = negative_bound(
        torch.zeros(1, 1, 1, 2), x, torch.full((1, 1), 0.5), torch.ones(1, 1), 0.1
    )
    assert found.item() == pytest.approx(5 + (0.25 + math.e - 2) / 2, rel=1e-6)


def test_the_loss_is_that_of_torchs_normals() -> None:
    images, x = torch.randn(2, 3, 2, 4, 4, dtype=torch.float64, generator=rng(1))
    mu, log_variance = torch.randn(2, 3, 5, dtype=torch.float64, generator=rng(2))
    constant = x[0].numel() * math.log(0.3 * math.sqrt(2 * math.pi))
    likelihood = Normal(images, 0.3).log_prob(x).flatten(1).sum(1) + constant
    posterior = Normal(mu, torch.exp(0.5 * log_variance))
    gap = kl_divergence(posterior, Normal(torch.zeros_like(mu), 1.0)).sum(1)
    found = negative_bound(images, x, mu, log_variance, 0.3)
    assert found.item() == pytest.approx(float((gap - likelihood).mean()), rel=1e-12)


def test_a_code_hangs_on_the_image_and_its_class() -> None:
    encoder = Encoder(FORM)
    begin(encoder, rng())
    x = torch.randn(2, 1, 4, 4, generator=rng(1))
    x = torch.stack((x[0], x[0], x[1]))
    for part in encoder(x, torch.tensor([0, 1, 1])):
        assert part.shape == (3, 4)
        assert float(torch.pdist(part.detach()).min()) > 0.1


def test_training_is_decided_by_the_generator() -> None:
    before = torch.get_rng_state()
    first, again, other = (train_prior(*halves(32), FORM, rng(s), BRIEF) for s in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    for a, b, c in zip(first.parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
        assert not a.requires_grad


@pytest.mark.extended
def test_it_learns_what_is_the_classs_and_what_is_an_images_own() -> None:
    """A half's mean is 0.3, the other's -0.8; brightness that is uniform over 1 has a deviation of 0.29."""
    form, plan = Form((1, 4, 4), 2, width=12, depth=2, latent=4), Plan(steps=300, batch=32, lr=0.01)
    network = train_prior(*halves(256), form, rng(1), plan)
    for label in (0, 1):
        labels = torch.full((200,), label)
        columns = network(torch.randn(200, 4, generator=rng(3)), labels).mean((1, 2))
        bright, dark = (0, 2) if label == 0 else (2, 0)
        assert float(columns[:, bright].mean()) == pytest.approx(0.3, abs=0.2)
        assert float(columns[:, dark].mean()) == pytest.approx(-0.8, abs=0.1)
        assert float(columns[:, bright].std()) == pytest.approx(0.29, abs=0.12)
        assert float(columns[:, dark].std()) < 0.1


def test_images_that_do_not_fit_are_refused() -> None:
    images, labels = halves(8)
    for x, y in ((images, labels[:7]), (images[:0], labels[:0]), (images[..., :3], labels)):
        with pytest.raises(ValueError, match="cannot train a generator of"):
            train_prior(x, y, FORM, rng())


def test_a_training_that_leaves_the_numbers_says_so() -> None:
    images, labels = halves(32)
    with pytest.raises(FloatingPointError, match="lower its learning rate"):
        train_prior(images * math.nan, labels, FORM, rng(), BRIEF)
