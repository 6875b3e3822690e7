"""FedGEN's mathematics: each loss by hand, which way its divergences look, and that a training goes on to the bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from seeds import rng
from torch import Tensor, nn

from synth.feature_generator import (
    FeatureGenerator,
    GeneratorTraining,
    class_shares,
    device_loss,
    device_weight,
    diversity_loss,
    latents_of,
    linear_heads,
    start,
    teacher_loss,
)
from synth.generators.latents import ImageGenerator, Latents, PixelGenerator


def doubles(*rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# --- the generator ---


def test_the_network_has_the_released_sizes() -> None:
    """(32 + 10) * 256 + 256, twice 256 of the batch norm, 256 * 32 + 32."""
    model = start(rng(), classes=10, latent=32)
    assert sum(p.numel() for p in model.parameters()) == 11_008 + 512 + 8_224


def test_a_latent_by_hand() -> None:
    """One unit, weights 2, 3, -1 on (eps, y = 0, y = 1), bias 1; the norm as fresh; then 5 h + 7.

    For eps .5 and class 0 the unit is 1 + 3 + 1 = 5, for class 1 it is 1 - 1 + 1 = 1; for eps 0 and class 1, 0.
    """
    model = start(rng(), classes=2, latent=1, hidden=1, noise=1).double().eval()
    with torch.no_grad():
        for parameter, values in zip(
            model.parameters(),
            ([[2.0, 3.0, -1.0]], [1.0], [1.0], [0.0], [[5.0]], [7.0]),
            strict=True,
        ):
            parameter.copy_(torch.tensor(values))
    latents = model(doubles([0.5], [0.5], [0.0]), torch.tensor([0, 1, 1]))
    root = math.sqrt(1 + 1e-5)
    assert latents.flatten().tolist() == pytest.approx([25 / root + 7, 5 / root + 7, 7.0])


def test_weights_and_noise_come_from_the_generator_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = (start(rng(seed), 3, 8) for seed in (1, 1, 2))
    for a, b in zip(first.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(first.layers[0].weight, other.layers[0].weight)
    wide = first.layers[3].weight  # uniform in +-1/sqrt(256)
    assert float(wide.detach().abs().max()) == pytest.approx(1 / 16, rel=0.01)
    noise = first.draw_noise(5_000, rng(3))
    assert noise.shape == (5_000, 32)
    assert float(noise.min()) >= 0
    assert float(noise.max()) < 1
    assert float(noise.mean()) == pytest.approx(0.5, abs=0.005)  # 7 standard errors
    assert float(noise.var()) == pytest.approx(1 / 12, abs=0.003)
    latents_of(first, torch.tensor([0, 2]), first.draw_noise(2, rng(4)))
    assert torch.equal(before, torch.get_rng_state())


def test_a_device_draws_latents_in_evaluation_mode() -> None:
    """Whom it is drawn with changes no latent, and the statistics stay; the mode comes back."""
    model = start(rng(1), 3, 4, hidden=16, noise=2)
    model.train()
    model(model.draw_noise(50, rng(2)), torch.randint(3, (50,), generator=rng(3)))  # statistics
    before = {name: value.clone() for name, value in model.state_dict().items()}
    eps = model.draw_noise(3, rng(5))
    alone = latents_of(model, torch.tensor([1]), eps[:1])
    among = latents_of(model, torch.tensor([1, 2, 0]), eps)
    torch.testing.assert_close(alone[0], among[0])
    assert not among.requires_grad
    assert model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


# --- the server's loss ---


def test_heads_together_are_each_by_itself() -> None:
    heads = [nn.Linear(5, 3) for _ in range(4)]
    generator = rng(1)
    with torch.no_grad():
        for head in heads:
            for parameter in head.parameters():
                parameter.normal_(generator=generator)
    together = linear_heads(
        torch.stack([head.weight for head in heads]), torch.stack([head.bias for head in heads])
    )
    latents = torch.randn(7, 5, generator=rng(2))
    logits = together(latents)
    assert logits.shape == (7, 4, 3)
    for k, head in enumerate(heads):
        torch.testing.assert_close(logits[:, k], head(latents))


def test_shares_by_hand_with_an_absent_class() -> None:
    """Class 0: 3 and 1; class 1: nobody; class 2: 0 and 8."""
    counts = torch.tensor([[3, 0, 0], [1, 0, 8]])
    assert class_shares(counts).tolist() == [[0.75, 0.0, 0.0], [0.25, 0.0, 1.0]]


@settings(deadline=None)  # a busy machine is no failure
@given(st.lists(st.lists(st.integers(0, 50), min_size=4, max_size=4), min_size=1, max_size=6))
def test_the_shares_of_a_class_that_there_is_sum_to_one(counts: list[list[int]]) -> None:
    found = class_shares(torch.tensor(counts)).sum(0)
    there = [float(any(row[c] for row in counts)) for c in range(4)]
    assert found.tolist() == pytest.approx(there)


def test_the_teachers_loss_by_hand() -> None:
    """Probabilities of the right class: 1/2 and 1/4 with head 0, 1/8 and 1/2 with head 1; shares 3/4, 1/4 and 0, 1.

    Example 0 (class 0): 3/4 ln 2 + 1/4 ln 8 = 1.5 ln 2. Example 1 (class 2): 0 ln 4 + 1 ln 2. The mean is 1.25 ln 2.
    Weighted by means over the batch, as in the released code, it would be (3 + 4 * 5) / 16 ln 2 instead.
    """
    half, quarter, eighth = (math.log(p) for p in (0.5, 0.25, 0.125))
    logits = torch.tensor(
        [
            [[half, quarter, quarter], [eighth, half, math.log(0.375)]],
            [[half, quarter, quarter], [quarter, quarter, half]],
        ],
        dtype=torch.float64,
    )
    shares = doubles([0.75, 0.0, 0.0], [0.25, 0.0, 1.0])
    loss = teacher_loss(logits, torch.tensor([0, 2]), shares)
    assert float(loss) == pytest.approx(1.25 * math.log(2), rel=1e-12)


def test_the_teachers_loss_against_loops() -> None:
    logits = torch.randn(6, 3, 4, dtype=torch.float64, generator=rng(1))
    labels = torch.tensor([3, 0, 2, 2, 1, 0])
    shares = torch.rand(3, 4, dtype=torch.float64, generator=rng(2))
    z, a = logits.numpy(), shares.numpy()
    expected = 0.0
    for k in range(3):
        errors = []
        for i, y in enumerate(labels.tolist()):
            p = np.exp(z[i, k]) / np.exp(z[i, k]).sum()
            errors.append(-a[k, y] * np.log(p[y]))
        expected += float(np.mean(errors))
    assert float(teacher_loss(logits, labels, shares)) == pytest.approx(expected, rel=1e-12)


def test_the_diversity_by_hand() -> None:
    """Noise (0, 0), (2, 0): d2 = 4 / 2; latents (0, 0, 0), (1, -2, 3): d1 = 6 / 3; two of four pairs: exp(-4 * 2/4)."""
    eps = doubles([0.0, 0.0], [2.0, 0.0])
    latents = doubles([0.0, 0.0, 0.0], [1.0, -2.0, 3.0])
    assert float(diversity_loss(eps, latents)) == pytest.approx(math.exp(-2), rel=1e-12)


def test_equal_latents_are_no_diversity_and_descent_parts_them() -> None:
    eps = torch.rand(5, 3, dtype=torch.float64, generator=rng(1))
    assert float(diversity_loss(eps, torch.ones(5, 2, dtype=torch.float64))) == 1
    latents = torch.randn(5, 2, dtype=torch.float64, generator=rng(2)).requires_grad_()
    before = diversity_loss(eps, latents)
    (slope,) = torch.autograd.grad(before, latents)
    moved = latents.detach() - 0.1 * slope
    spread = torch.pdist(latents.detach()).sum()
    assert float(diversity_loss(eps, moved)) < float(before.detach()) < 1
    assert float(torch.pdist(moved).sum()) > float(spread)


def test_the_diversitys_gradient_against_finite_differences() -> None:
    eps = torch.rand(6, 3, dtype=torch.float64, generator=rng(1))
    latents = torch.randn(6, 4, dtype=torch.float64, generator=rng(2))
    (slope,) = torch.autograd.grad(diversity_loss(eps, latents.requires_grad_()), latents)

    def slow(values: Tensor) -> float:
        e, g = eps.numpy(), values.detach().numpy()
        d2 = ((e[:, None] - e[None]) ** 2).mean(2)
        d1 = np.abs(g[:, None] - g[None]).mean(2)
        return float(np.exp(-(d2 * d1).mean()))

    way = torch.randn(6, 4, dtype=torch.float64, generator=rng(3))
    up, down = slow(latents + 1e-6 * way), slow(latents - 1e-6 * way)
    assert float((slope * way).sum()) == pytest.approx((up - down) / 2e-6, rel=1e-6)


# --- the device's loss ---


def test_the_weights_of_the_rounds() -> None:
    """10, 9.8, 9.604 after 0, 1 and 2; .98^569 is the last above 1e-5, so from 570 on it is 1e-4."""
    assert [device_weight(r) for r in (0, 1, 2)] == pytest.approx([10.0, 9.8, 9.604])
    assert 1e-4 < device_weight(569) < 1.02e-4
    assert device_weight(570) == device_weight(5_000) == 1e-4


def test_the_devices_terms_by_hand() -> None:
    """p(x) = (1/4, 3/4), the target (1/2, 1/2): KL(target || p) = 1/2 ln 2 + 1/2 ln(2/3) = ln(2 / sqrt 3).

    The other way it would be 1/4 ln(1/2) + 3/4 ln(3/2) = 0.131 instead of 0.144. CE of 1/8 is ln 8.
    """
    logits = doubles([math.log(1), math.log(3)])
    matched = doubles([5.0, 5.0])
    drawn = doubles([math.log(1), math.log(7)])
    y = torch.tensor([0])
    parts = [
        float(device_loss(logits, matched, drawn, y, alpha=alpha, beta=beta, ratio=0.25))
        for alpha, beta in ((0, 1), (1, 0), (3, 2))
    ]
    divergence, error = math.log(2 / math.sqrt(3)), math.log(8)
    assert parts == pytest.approx(
        [divergence, 0.25 * error, 2 * divergence + 0.25 * 3 * error], rel=1e-12
    )
    two = device_loss(
        logits.expand(2, -1), matched.expand(2, -1), drawn, y, alpha=0, beta=1, ratio=1
    )
    assert float(two) == pytest.approx(
        divergence
    )  # the mean over the batch, not over its coordinates


def test_the_target_is_stopped_and_the_rest_is_not() -> None:
    """dKL/dlogits = p - target, and no gradient reaches the target; that of CE is softmax - one-hot."""
    logits, matched, drawn = (
        torch.randn(1, 3, dtype=torch.float64, generator=rng(seed)).requires_grad_()
        for seed in (1, 2, 3)
    )
    y = torch.tensor([2])
    loss = device_loss(logits, matched, drawn, y, alpha=3, beta=2, ratio=0.5)
    loss.backward()  # type: ignore[no-untyped-call]
    assert matched.grad is None
    p, target, q = (t.detach().softmax(1) for t in (logits, matched, drawn))
    torch.testing.assert_close(logits.grad, 2 * (p - target))
    torch.testing.assert_close(drawn.grad, 1.5 * (q - doubles([0.0, 0.0, 1.0])))


# --- training ---


def linear(seed: int, devices: int = 3, classes: int = 4, latent: int = 6) -> tuple[Tensor, Tensor]:
    weights = torch.randn(devices, classes, latent, generator=rng(seed))
    return weights, torch.zeros(devices, classes)


COUNTS = torch.tensor([[9, 0, 0, 1], [1, 0, 5, 0], [0, 0, 5, 3]])


def test_the_generator_learns_what_the_heads_take_for_a_class_and_leaves_the_heads() -> None:
    weights, biases = linear(1)
    weights.requires_grad_()
    model = start(rng(2), 4, 6, hidden=32, noise=4)
    training = GeneratorTraining(model, lr=1e-2)
    losses = [
        training.train_round(linear_heads(weights, biases), COUNTS, rng(10 + r), batch=64)
        for r in range(3)
    ]
    assert losses[2] < losses[1] < losses[0]
    assert weights.grad is None
    labels = torch.tensor([0, 2, 3]).repeat_interleave(50)
    logits = linear_heads(weights, biases)(latents_of(model, labels, model.draw_noise(150, rng(5))))
    strongest = class_shares(COUNTS).argmax(0)[labels]  # the device with most of the class
    taken = logits[torch.arange(150), strongest].argmax(1)
    assert float((taken == labels).float().mean()) > 0.95
    # noise of one class gives latents that differ: what the diversity is for
    apart = torch.pdist(latents_of(model, labels[:50], model.draw_noise(50, rng(6))))
    assert float(apart.mean()) > 0.1


def test_only_classes_that_a_device_has_are_drawn() -> None:
    """The one-hot of a class that is never drawn is 0: its column has no gradient, and without decay it stays."""
    weights, biases = linear(1)
    model = start(rng(2), 4, 6, hidden=8, noise=2)
    before = model.layers[0].weight.detach().clone()
    GeneratorTraining(model, weight_decay=0).train_round(
        linear_heads(weights, biases), COUNTS, rng(3), steps=5
    )
    moved = (model.layers[0].weight.detach() != before).any(0)
    assert moved.tolist() == [True, True, True, False, True, True]


def test_no_examples_are_refused() -> None:
    with pytest.raises(ValueError, match="no device has an example"):
        GeneratorTraining(start(rng(), 4, 6)).train_round(
            linear_heads(*linear(1)), torch.zeros(3, 4, dtype=torch.int64), rng()
        )


def test_a_round_is_adam_on_the_loss_with_moments_kept_and_the_rate_falling_from_round_to_round() -> (
    None
):
    """Two rounds of two steps, with the same draws in the order that the rounds take them, and Adam as published."""
    weights, biases = linear(1)
    heads, counts = linear_heads(weights, biases), COUNTS
    ours, theirs = (start(rng(2), 4, 6, hidden=8, noise=2) for _ in range(2))
    training = GeneratorTraining(ours, lr=0.01, weight_decay=0.1, decay=0.5)
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in theirs.parameters()]
    theirs.train()
    present = torch.tensor([0, 2, 3])
    for r in range(2):
        training.train_round(heads, counts, rng(r), steps=2, batch=16, eta=0.7)
        draws = rng(r)
        for t in (2 * r + 1, 2 * r + 2):
            labels = present[torch.randint(3, (16,), generator=draws)]
            eps = torch.rand(16, 2, generator=draws)
            latents = theirs(eps, labels)
            loss = torch.zeros(())
            for k in range(3):
                log_p = (latents @ weights[k].T).log_softmax(1)
                share = counts[k].float() / counts.sum(0).clamp_min(1)
                loss = loss - (share[labels] * log_p[torch.arange(16), labels]).mean()
            d2 = (eps[:, None] - eps[None]).square().mean(2)
            d1 = (latents[:, None] - latents[None]).abs().mean(2)
            loss = loss + 0.7 * torch.exp(-(d2 * d1).mean())
            slopes = torch.autograd.grad(loss, list(theirs.parameters()))
            with torch.no_grad():
                for p, slope, (m, v) in zip(theirs.parameters(), slopes, moments, strict=True):
                    penalised = slope + 0.1 * p
                    m.mul_(0.9).add_(0.1 * penalised)
                    v.mul_(0.999).add_(0.001 * penalised.square())
                    up, down = m / (1 - 0.9**t), (v / (1 - 0.999**t)).sqrt() + 1e-8
                    p.sub_(0.01 * 0.5**r * up / down)
    for name, value in ours.state_dict().items():
        # Adam's first steps are .01 and .005 of any gradient, and its rounding is divided by the gradient's size.
        torch.testing.assert_close(value, theirs.state_dict()[name], rtol=1e-4, atol=1e-5)


def test_a_training_that_was_restored_ends_with_the_bits_of_an_unbroken_one() -> None:
    def model() -> FeatureGenerator:
        return start(rng(2), 4, 6, hidden=8, noise=2)

    def round_of(training: GeneratorTraining, r: int) -> float:
        return training.train_round(linear_heads(*linear(r)), COUNTS, rng(50 + r), steps=4)

    whole = GeneratorTraining(unbroken := model())
    losses = [round_of(whole, r) for r in range(4)]
    first = GeneratorTraining(model())
    for r in range(2):
        round_of(first, r)
    state = first.state()
    round_of(first, 2)  # what goes on moves no state that was taken
    second = GeneratorTraining(restored := start(rng(9), 4, 6, hidden=8, noise=2))
    second.restore(state)
    assert second.round == 2
    assert [round_of(second, r) for r in (2, 3)] == losses[2:]
    for name, value in restored.state_dict().items():
        assert torch.equal(value, unbroken.state_dict()[name])
    assert not torch.equal(restored.layers[0].weight, model().layers[0].weight)


def test_a_loss_that_is_no_number_is_told() -> None:
    weights, biases = linear(1)
    with pytest.raises(FloatingPointError, match="round 1: lower its learning rate"):
        GeneratorTraining(start(rng(), 4, 6)).train_round(
            linear_heads(weights * math.nan, biases), COUNTS, rng(), steps=1
        )


# ---- latents, and images as their own ----------------------------------------------------------------


def test_latents_refuse_what_does_not_belong_together() -> None:
    with pytest.raises(ValueError, match="0 latent tensors with 0 rates"):
        Latents((), ())
    with pytest.raises(ValueError, match="1 latent tensors with 2 rates"):
        Latents((torch.zeros(3, 2),), (1.0, 2.0))
    with pytest.raises(ValueError, match="tensors of 3, 4 rows"):
        Latents((torch.zeros(3, 2), torch.zeros(4, 2)), (1.0, 2.0))


def test_latents_of_other_values_keep_their_rates() -> None:
    start = Latents((torch.zeros(2, 3),), (7.0,))
    moved = start.holding([torch.ones(2, 3)])
    assert moved.rates == (7.0,)
    assert float(moved.tensors[0].sum()) == 6


@settings(deadline=None)  # a busy machine is no failure
@given(st.integers(0, 5), st.integers(1, 3), st.integers(1, 9), st.integers(0, 2**32))
def test_pixels_go_to_images_and_back(n: int, channels: int, side: int, seed: int) -> None:
    pixels: ImageGenerator = PixelGenerator((channels, side, side))
    start = pixels.latents(torch.zeros(n, dtype=torch.int64), rng(seed))
    images = pixels.images(start)
    assert images.shape == (n, channels, side, side)
    assert torch.equal(pixels.images(start.holding([images])), start.tensors[0])


def test_pixels_begin_with_standard_noise_from_the_generator_alone() -> None:
    labels, before = torch.arange(10).repeat(20), torch.get_rng_state()
    first, again, other = (
        PixelGenerator((1, 8, 8), rate=3.0).latents(labels, rng(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first.tensors[0], again.tensors[0])
    assert not torch.equal(first.tensors[0], other.tensors[0])
    assert first.rates == (3.0,)
    # 12,800 values: the standard errors are 0.009 and 0.006
    assert float(first.tensors[0].mean()) == pytest.approx(0, abs=0.05)
    assert float(first.tensors[0].std()) == pytest.approx(1, abs=0.04)
