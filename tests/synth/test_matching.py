"""Distribution matching's parts against slow references: Eq. 9, its gradient, P_w, the projection, the batches."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matching import matching_loss
from seeds import rng
from torch import Tensor

from common.models import Classifier, build
from synth.starts import ClassBatches, project_ball, sample_ball


def network(norm: str = "instance", dtype: torch.dtype = torch.float64) -> Classifier:
    model = build("convnet", (2, 8, 8), 5, depth=2, width=4, norm=norm, generator=rng(1))
    with torch.no_grad():  # norms off the identity, so that their part in the features shows
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=rng(2)) * 0.1)
    return model.to(dtype)


def batch(count: int, seed: int, classes: tuple[int, ...] = (0, 2, 3)) -> tuple[Tensor, Tensor]:
    """Return float64 images and labels in mixed order, every class at least once."""
    labels = torch.tensor(classes).repeat(count)[:count]
    labels = labels[torch.randperm(count, generator=rng(seed))]
    return torch.randn(count, 2, 8, 8, dtype=torch.float64, generator=rng(seed + 1)), labels


def slow_loss(model: Classifier, rx: Tensor, ry: Tensor, sx: Tensor, sy: Tensor) -> float:
    """Eq. 9 by loops over classes, samples and coordinates, one network call a sample (or a class, with batch norm)."""

    def means(x: Tensor, y: Tensor, c: int) -> list[float]:
        chosen = x[y == c]
        calls = [chosen] if model.couples_samples else [one[None] for one in chosen]
        total: list[float] = []
        for part in (model.embed, model):
            rows = [row for call in calls for row in part(call).tolist()]
            total += [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
        return total

    with torch.no_grad():
        return math.fsum(
            (a - b) ** 2
            for c in sorted(set(ry.tolist()))
            for a, b in zip(means(rx, ry, c), means(sx, sy, c), strict=True)
        )


@pytest.mark.parametrize("norm", ["instance", "batch", "none"])
def test_equation_9_against_loops(norm):
    model = network(norm)
    real, syn = batch(17, 3), batch(7, 5)
    loss = matching_loss(model, *real, *syn)
    assert loss.item() == pytest.approx(slow_loss(model, *real, *syn), rel=1e-10)


def test_equation_9_by_hand():
    """h = x, z = (x, 2x): class 0 means 1 and 3, class 1 equal; 2^2 + 2^2 + 4^2 = 24."""
    loss = matching_loss(
        Line(torch.tensor([1.0, 2.0])),
        torch.tensor([0.0, 2.0, 5.0]).view(3, 1, 1, 1),
        torch.tensor([0, 0, 1]),
        torch.tensor([5.0, 3.0]).view(2, 1, 1, 1),
        torch.tensor([1, 0]),
    )
    assert loss.item() == 24


class Line(Classifier):
    """h = x, z = w x."""

    def __init__(self, w: Tensor) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(w)

    def embed(self, x: Tensor) -> Tensor:
        return x.flatten(1)

    def classify(self, h: Tensor) -> Tensor:
        return h * self.w


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_gradient_against_finite_differences(norm):
    model = network(norm)
    real, (images, labels) = batch(17, 3), batch(7, 5)
    images.requires_grad_()
    (gradient,) = torch.autograd.grad(matching_loss(model, *real, images, labels), images)
    for seed in range(5):
        way = torch.randn(images.shape, dtype=torch.float64, generator=rng(seed))
        step = 1e-6
        up, down = (
            slow_loss(model, *real, images.detach() + sign * step * way, labels) for sign in (1, -1)
        )
        assert (gradient * way).sum().item() == pytest.approx((up - down) / (2 * step), rel=1e-5)


def test_no_gradient_reaches_the_real_batch():
    model = network()
    (rx, ry), (sx, sy) = batch(9, 3), batch(6, 5)
    rx.requires_grad_()
    sx.requires_grad_()
    matching_loss(model, rx, ry, sx, sy).backward()
    assert rx.grad is None
    assert float(sx.grad.abs().sum()) > 0


def test_the_order_of_samples_is_nothing():
    model = network()
    (rx, ry), (sx, sy) = batch(12, 3), batch(6, 5)
    turned = matching_loss(model, rx.flip(0), ry.flip(0), sx.flip(0), sy.flip(0))
    torch.testing.assert_close(turned, matching_loss(model, rx, ry, sx, sy))


@pytest.mark.extended
def test_a_large_real_batch_is_cut_without_a_change():
    """600 images of 8x8 are more than a piece; float32 to 1e-5 of the float64 loops."""
    real, syn = batch(600, 3), batch(6, 5)
    loss = matching_loss(
        network(dtype=torch.float32), real[0].float(), real[1], syn[0].float(), syn[1]
    )
    assert loss.item() == pytest.approx(slow_loss(network(), *real, *syn), rel=1e-5)


def test_the_real_batch_in_bfloat16_stays_near():
    model = network(dtype=torch.float32)
    (rx, ry), (sx, sy) = batch(64, 3), batch(6, 5)
    exact, rough = (
        matching_loss(model, rx.float(), ry, sx.float(), sy, real_precision=precision)
        for precision in (torch.float32, torch.bfloat16)
    )
    assert rough.dtype == torch.float32
    assert rough != exact
    torch.testing.assert_close(rough, exact, rtol=0.02, atol=0)


def test_matching_refuses_other_classes():
    model = network()
    with pytest.raises(ValueError, match=r"\[0, 2, 3\].*\[0, 2\]"):
        matching_loss(model, *batch(9, 3), *batch(6, 5, (0, 2)))


# --- P_w and the ball ---


def test_weights_lie_on_the_sphere_where_the_clip_binds():
    centre = torch.randn(20_000, dtype=torch.float64, generator=rng(3)) * 0.05
    for rho in (0.5, 5.0, 100.0):
        w = sample_ball(centre, rho, rng(4))
        assert float((w - centre).norm()) == pytest.approx(rho, rel=1e-12)


def test_a_huge_ball_leaves_the_gaussian_untouched():
    centre = torch.full((1000,), 7.0, dtype=torch.float64)
    noise = torch.empty_like(centre).normal_(generator=rng(5))
    for rho in (1e9, math.inf):
        assert torch.equal(sample_ball(centre, rho, rng(5)), centre + noise)
    assert noise.std().item() == pytest.approx(1, abs=0.1)


def test_clipping_keeps_the_direction():
    centre = torch.zeros(50, dtype=torch.float64)
    free, clipped = (sample_ball(centre, rho, rng(6)) for rho in (math.inf, 2.0))
    torch.testing.assert_close(clipped, free * 2 / free.norm())


def test_in_one_dimension_the_clip_binds_only_outside():
    draws = torch.cat([sample_ball(torch.zeros(1), 1.0, rng(seed)) for seed in range(500)])
    assert draws.abs().max() == 1
    inside = (draws.abs() < 1).double().mean().item()
    assert inside == pytest.approx(math.erf(1 / math.sqrt(2)), abs=0.07)


def test_sampling_writes_where_it_is_told_and_spares_the_centre():
    centre, out = torch.ones(9), torch.empty(9)
    assert sample_ball(centre, 1.0, rng(), out=out) is out
    assert torch.equal(out, sample_ball(centre, 1.0, rng()))
    assert torch.equal(centre, torch.ones(9))
    assert torch.equal(sample_ball(centre, 0.0, rng()), centre)


@settings(deadline=None)  # a busy machine is no failure
@given(st.integers(0, 2**32), st.floats(0, 10), st.floats(0.01, 10))
def test_projection(seed, distance, rho):
    centre = [torch.randn(shape, dtype=torch.float64, generator=rng(seed)) for shape in (3, (2, 4))]
    way = [torch.randn(c.shape, dtype=torch.float64, generator=rng(seed + 1)) for c in centre]
    length = math.sqrt(sum(float(d.square().sum()) for d in way))
    start = [c + d * distance / length for c, d in zip(centre, way, strict=True)]
    w = [s.clone() for s in start]
    project_ball(w, centre, rho)
    moved = torch.cat([(a - c).flatten() for a, c in zip(w, centre, strict=True)])
    if distance < rho * (1 - 1e-9):
        assert all(torch.equal(a, s) for a, s in zip(w, start, strict=True))
    else:
        assert float(moved.norm()) == pytest.approx(min(rho, distance), rel=1e-9)
        whole = torch.cat([d.flatten() for d in way]) * min(rho, distance) / length
        torch.testing.assert_close(moved, whole, rtol=1e-7, atol=1e-9)


def test_projection_at_the_centre_stays():
    centre = torch.randn(5, generator=rng())
    w = centre.clone()
    project_ball([w], [centre], 5.0)
    assert torch.equal(w, centre)


# --- batches and starts ---

label_lists = st.lists(st.integers(0, 6), min_size=1, max_size=40).map(torch.tensor)


@pytest.mark.extended
@settings(deadline=None)  # a busy machine is no failure
@given(label_lists, st.integers(0, 8), st.integers(0, 99))
def test_a_batch_holds_each_class_without_repeats(labels, size, seed):
    plan = ClassBatches.plan(labels, size)
    drawn = plan.draw(rng(seed))
    assert torch.equal(labels[drawn], plan.labels)
    assert len(set(drawn.tolist())) == len(drawn)
    assert plan.labels.tolist() == sorted(plan.labels.tolist())
    for row, (c, where) in enumerate(zip(plan.classes.tolist(), plan.slices, strict=True)):
        held = int((labels == c).sum())
        assert where.stop - where.start == (min(size, held) if size else held)
        x = torch.randn(len(drawn), 2, generator=rng(seed))
        torch.testing.assert_close(plan.averages[row] @ x, x[where].mean(0))


def test_every_sample_is_drawn_as_often():
    labels = torch.tensor([0] * 5 + [1] * 3 + [0] * 5)
    plan, draw, seen = ClassBatches.plan(labels, 2), rng(1), torch.zeros(13)
    for _ in range(2000):
        seen[plan.draw(draw)] += 1
    expected = torch.tensor([400.0] * 5 + [4000 / 3] * 3 + [400.0] * 5)
    assert ((seen - expected).abs() < 90).all()  # 5 standard deviations of 18 and 21
