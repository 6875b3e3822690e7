"""The beta-VAE: its size by hand, its objective as a bound on the likelihood, and what it learns of sprites."""

from __future__ import annotations

import math

import pytest
import torch
from seeds import rng
from sprites import ELLIPSE, SQUARE, sprites
from torch import Tensor, nn

from synth.beta_vae import BetaVAE, VAETraining, draw_images, negative_elbo, start


def test_the_network_is_that_of_burgess_et_al() -> None:
    """544 + 3 * 16,416 + 131,328 + 65,792 + 5,140, and the mirror 2,816 + 65,792 + 131,584 + 3 * 16,416 + 513."""
    model = start((1, 64, 64), rng())
    assert sum(p.numel() for p in model.encoder.parameters()) == 252_052
    assert sum(p.numel() for p in model.decoder.parameters()) == 249_953
    assert sum(isinstance(m, nn.Conv2d) for m in model.modules()) == 4


@pytest.mark.parametrize(
    ("channels", "side", "halvings"), [(1, 8, 1), (3, 16, 2), (1, 32, 3), (1, 64, 4)]
)
def test_images_become_codes_and_codes_images(channels: int, side: int, halvings: int) -> None:
    model = start((channels, side, side), rng(), latent=3)
    x = torch.rand(2, channels, side, side, generator=rng(1))
    mu, log_variance = model.encode(x)
    assert mu.shape == log_variance.shape == (2, 3)
    assert model.decode(mu).shape == x.shape
    assert float(model.decode(mu).detach().min()) < 0  # logits, and no ReLU behind them
    assert sum(isinstance(m, nn.ConvTranspose2d) for m in model.modules()) == halvings


@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 4, 4), (1, 32, 64), (1, 48, 48)])
def test_other_sides_are_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=f"power of 2, not {shape[1]}x{shape[2]}"):
        BetaVAE(shape)


def test_initial_weights_come_from_the_generator_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = (start((1, 16, 16), rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    for a, b, c in zip(first.parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
    wide = first.encoder[
        5
    ].weight  # Linear(512, 256): uniform of 1/sqrt(512) has a deviation of that / sqrt(3)
    assert float(wide.detach().abs().max()) == pytest.approx(1 / math.sqrt(512), rel=1e-3)
    assert float(wide.detach().std()) == pytest.approx(1 / math.sqrt(3 * 512), rel=0.01)


# --- the objective ---


def test_the_objective_by_hand() -> None:
    """Logits 0 and ln 3 for pixels 1 and 0: ln 2 + ln 4; mu 0.5 and sigma^2 e: (0.25 + e - 2) / 2, beta times."""
    logits = torch.tensor([[[[0.0, math.log(3)]]]])
    x = torch.tensor([[[[1.0, 0.0]]]])
    mu, log_variance = torch.full((1, 1), 0.5), torch.ones(1, 1)
    for beta in (0.0, 1.0, 4.0):
        expected = math.log(8) + beta * (0.25 + math.e - 2) / 2
        found = negative_elbo(logits, x, mu, log_variance, beta)
        assert found.tolist() == [pytest.approx(expected, rel=1e-6)]


def test_the_objective_falls_short_of_the_likelihood_by_the_divergence_from_the_posterior() -> None:
    """log p(x) = ELBO + KL(q || p(z | x)) at beta 1, integrals over one latent dimension by the trapezoidal rule."""
    z = torch.linspace(-12, 12, 20_001, dtype=torch.float64)
    slope, bias = torch.randn(2, 6, dtype=torch.float64, generator=rng(1))
    x = torch.tensor([1.0, 0, 1, 1, 0, 1], dtype=torch.float64)
    logits = z[:, None] * slope + bias
    log_p_x_z = (x * logits - torch.log1p(logits.exp())).sum(1)
    log_joint = log_p_x_z - 0.5 * z.square() - 0.5 * math.log(2 * math.pi)
    log_p_x = torch.trapezoid(log_joint.exp(), z).log()

    mu, log_variance = torch.tensor([[-1.5]]).double(), torch.tensor([[-0.4]]).double()
    q = torch.distributions.Normal(mu[0, 0], torch.exp(0.5 * log_variance[0, 0])).log_prob(z)
    gap = torch.trapezoid(q.exp() * (q - (log_joint - log_p_x)), z)

    n = len(z)
    found = negative_elbo(
        logits.view(n, 1, 2, 3),
        x.view(1, 1, 2, 3).expand(n, -1, -1, -1),
        mu.expand(n, 1),
        log_variance.expand(n, 1),
    )
    elbo = -torch.trapezoid(q.exp() * found, z)
    assert float(gap) > 0.1
    assert float(elbo + gap) == pytest.approx(float(log_p_x), rel=1e-9)


# --- training ---


def scene() -> tuple[Tensor, Tensor]:
    """Return squares on the left and ellipses on the right, 16x16, and their labels."""
    draws = rng(5)
    x, y, turn = torch.rand(3, 256, generator=draws, dtype=torch.float64).numpy()
    labels = torch.arange(256) % 2
    shape = torch.where(labels == 0, SQUARE, ELLIPSE).numpy()
    images = sprites(shape, 1.0, turn, 0.15 * x + 0.85 * labels.numpy(), 0.1 * y, side=16)
    return torch.from_numpy(images)[:, None].float(), labels


def training(images: Tensor, seed: int = 0) -> tuple[BetaVAE, VAETraining]:
    model = start((1, 16, 16), rng(1))
    how = VAETraining(
        model,
        images * 2 - 1,
        torch.arange(len(images)) % 2,
        lambda epoch: rng(1000 * seed + epoch),
        beta=0.25,
        lr=2e-3,
        batch=32,
    )
    return model, how


@pytest.mark.extended
def test_a_restored_training_ends_with_the_bits_of_an_unbroken_one() -> None:
    images, _ = scene()
    model, unbroken = training(images)
    losses = list(unbroken.run(2))
    kept = unbroken.state()
    losses += list(unbroken.run(4))

    resumed_model, resumed = training(images)
    resumed.load(kept)
    assert resumed.epoch == 2
    assert list(resumed.run(4)) == losses[2:]
    for name, tensor in unbroken.state().items():
        assert torch.equal(tensor, resumed.state()[name]), name
    assert all(map(torch.equal, model.parameters(), resumed_model.parameters()))

    _, other = training(images, seed=1)
    other.load(kept)
    assert next(other.run(3)) != losses[2]


def test_an_epoch_steps_through_every_image_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[Tensor]()
    model, encode = start((1, 16, 16), rng(1)), BetaVAE.encode
    numbered = (torch.arange(256.0) / 128 - 1)[:, None, None, None].expand(-1, 1, 16, 16)

    def spy(self: BetaVAE, x: Tensor) -> tuple[Tensor, Tensor]:
        seen.append((x[:, 0, 0, 0] * 256).long())
        return encode(self, x)

    monkeypatch.setattr(BetaVAE, "encode", spy)
    epochs = VAETraining(model, numbered, torch.arange(256) % 2, rng, batch=60).run(2)
    next(epochs)
    assert [len(at) for at in seen] == [60, 60, 60, 60, 16]
    assert torch.cat(seen).sort().values.tolist() == list(range(256))
    first = torch.cat(seen)
    next(epochs)
    assert not torch.equal(torch.cat(seen)[256:], first)


def test_a_loss_that_is_no_number_ends_the_training() -> None:
    _, how = training(torch.full((60, 1, 16, 16), math.nan))
    with pytest.raises(FloatingPointError, match="in epoch 1: lower"):
        next(how.run(1))


@pytest.mark.extended
def test_what_is_drawn_around_a_classs_mean_lies_where_the_class_does() -> None:
    """Squares lie in the left half, ellipses in the right: so do the images drawn of either class' mean."""
    images, labels = scene()
    model, how = training(images)
    losses = list(how.run(20))
    assert losses[-1] < 0.5 * losses[0]
    wanted = torch.arange(2).repeat_interleave(50)
    drawn = (how.draw(wanted, rng(3)) + 1) / 2
    means = torch.stack([model.encode(images[labels == c])[0].mean(0) for c in (0, 1)])
    expected = draw_images(model, means[wanted], rng(3))
    torch.testing.assert_close(drawn, expected, rtol=1e-3, atol=1e-4)
    assert drawn.shape == (100, 1, 16, 16)
    assert 0 <= float(drawn.min()) <= float(drawn.max()) <= 1
    column = (torch.arange(16) + 0.5) / 16
    middle = (drawn.sum((1, 2)) @ column) / drawn.sum((1, 2, 3))
    assert float((middle[:50] < 0.5).float().mean()) > 0.8
    assert float((middle[50:] > 0.5).float().mean()) > 0.8


def test_codes_are_drawn_with_unit_variance_around_the_means() -> None:
    """A decoder that returns the code shows it: 20,000 draws, 5 standard errors."""

    class Shown(BetaVAE):
        def decode(self, z: Tensor) -> Tensor:
            return z[:, :, None, None]

    means = torch.tensor([[1.0, -2.0]]).expand(20_000, -1)
    images = draw_images(Shown((1, 8, 8), 2), means, rng(4))
    z = torch.logit(images.double())[..., 0, 0]
    assert (z.mean(0) - torch.tensor([1.0, -2.0])).abs().max() < 5 / math.sqrt(20_000)
    assert (z.std(0) - 1).abs().max() < 5 / math.sqrt(2 * 20_000)
