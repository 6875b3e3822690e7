"""FedDGM's gradients through a student's training: by hand, by finite differences, and against each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from seeds import rng
from torch import Tensor

from common.models import Classifier, build
from synth import augmentation
from synth.synthetic_updates import Loss, Parameters, loss_of
from synth.trajectory_matching import (
    Form,
    InnerStep,
    InnerTraining,
    Segment,
    SyntheticSet,
    exact,
    released,
    unrolled,
)

SHAPE, CLASSES, IPC = (2, 8, 8), 3, 2
N = CLASSES * IPC
ETA = 0.3
DSA = augmentation.parse("color_crop_cutout_flip_scale_rotate")


def normal(shape: Sequence[int], seed: int) -> Tensor:
    return torch.randn(shape, generator=rng(seed), dtype=torch.float64)


def network(name: str) -> Classifier:
    form = {"depth": 2, "width": 4} if name == "convnet" else {"width": 9}
    return build(name, SHAPE, CLASSES, generator=rng(1), **form).double()


def near(theta: Parameters, seed: int) -> dict[str, Tensor]:
    """Return parameters a little off ``theta``."""
    return {
        name: value + 0.05 * normal(value.shape, seed + i)
        for i, (name, value) in enumerate(theta.items())
    }


def problem(name: str = "convnet", seed: int = 3) -> tuple[Loss, Segment, SyntheticSet]:
    model = network(name)
    theta = {name: p.detach() for name, p in model.named_parameters()}
    data = SyntheticSet(
        normal((N, *SHAPE), seed),
        torch.arange(CLASSES).repeat_interleave(IPC),
        torch.tensor(ETA, dtype=torch.float64),
    )
    return loss_of(model, F.cross_entropy), Segment(theta, near(theta, 10 * seed)), data


def gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def cosine(a: Tensor, b: Tensor) -> float:
    return float(F.cosine_similarity(a.flatten(), b.flatten(), dim=0))


ways_to_train = pytest.mark.parametrize("transforms", [(), DSA], ids=["plain", "dsa"])
batches = pytest.mark.parametrize("batch", [0, 4], ids=["whole", "minibatch"])
models = pytest.mark.parametrize("name", ["convnet", "mlp"])


# --- the three forms ---


@models
@batches
@ways_to_train
def test_the_recursion_is_the_gradient_through_all_steps(
    name: str, batch: int, transforms: tuple[str, ...]
) -> None:
    loss, segment, data = problem(name)
    steps = InnerTraining(4, batch, transforms).steps(N, rng(7))
    there, back = unrolled(loss, segment, data, steps), exact(loss, segment, data, steps)
    assert float(there.images.norm()) > 1e-3
    assert gap(back.images, there.images) < 1e-9
    assert gap(back.step_size, there.step_size) < 1e-9
    assert gap(back.loss, there.loss) < 1e-12


def trained(segment: Segment, data: SyntheticSet, steps: Sequence[InnerStep], name: str) -> float:
    """Return L_MTT of a model that is trained in place, with neither functional calls nor a graph that is kept."""
    model = network(name)
    model.load_state_dict(segment.start)
    for step in steps:
        chosen = torch.arange(N) if step.batch is None else step.batch
        x, y = data.images[chosen], data.labels[chosen]
        if step.draw is not None:
            x = augmentation.apply(x, step.draw)
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= data.step_size * p.grad
    ended = dict(model.named_parameters())

    def squared_distance(to: Parameters) -> float:
        return sum(float((segment.end[k] - to[k].detach()).square().sum()) for k in ended)

    return squared_distance(ended) / squared_distance(segment.start)


@models
@batches
@ways_to_train
def test_the_unroll_against_finite_differences_of_plain_training(
    name: str, batch: int, transforms: tuple[str, ...]
) -> None:
    loss, segment, data = problem(name)
    steps = InnerTraining(3, batch, transforms).steps(N, rng(7))
    found = unrolled(loss, segment, data, steps)
    assert float(found.loss) == pytest.approx(trained(segment, data, steps, name), rel=1e-12)
    way, h = normal(data.images.shape, 21), 1e-6

    def slope(by_images: float, by_step_size: float) -> float:
        up, down = (
            SyntheticSet(
                data.images + sign * h * by_images * way,
                data.labels,
                data.step_size + sign * h * by_step_size,
            )
            for sign in (1, -1)
        )
        ends = (trained(segment, moved, steps, name) for moved in (up, down))
        return (next(ends) - next(ends)) / (2 * h)

    assert float((found.images * way).sum()) == pytest.approx(slope(1, 0), rel=1e-5)
    assert float(found.step_size) == pytest.approx(slope(0, 1), rel=1e-5)


def scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def quadratic(images: Sequence[float]) -> tuple[Loss, Segment, SyntheticSet]:
    """Return F = (theta - x)^2 / 2 averaged over the batch, from theta_g = 0 to theta_m = 1, eta = 1/2.

    A parameter that F does not use lies beside theta, and must not matter.
    """

    def loss(w: Parameters, x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * (w["theta"] - x).square().mean()

    idle = torch.ones(2, dtype=torch.float64)
    segment = Segment(
        {"theta": scalar(0.0), "idle": idle}, {"theta": scalar(1.0), "idle": idle.clone()}
    )
    x = torch.tensor(images, dtype=torch.float64).reshape(-1, 1, 1, 1)
    return loss, segment, SyntheticSet(x, torch.zeros(len(x), dtype=torch.int64), scalar(0.5))


@pytest.mark.parametrize(
    ("form", "by_images", "by_step_size"),
    [(unrolled, 3.0, 16.0), (exact, 3.0, 16.0), (released, 4.0, 24.0)],
)
def test_two_steps_on_a_quadratic_by_hand(
    form: Form, by_images: float, by_step_size: float
) -> None:
    """x = 4: theta = 0, 2, 3; L = (3 - 1)^2 / (0 - 1)^2 = 4, lambda_2 = 4.

    theta_2 = x (1 - (1 - eta)^2): dL/dx = 4 * 3/4, dL/deta = 4 * 2 x (1 - eta) = 16. Held at 4, lambda gives
    eta + eta = 1 times 4, and -<g_0, 4> - <g_1, 4> = 4 (4 + 2).
    """
    found = form(*quadratic([4.0]), [InnerStep(), InnerStep()])
    assert float(found.loss) == pytest.approx(4, rel=1e-15)
    assert found.images.flatten().tolist() == pytest.approx([by_images], rel=1e-14)
    assert float(found.step_size) == pytest.approx(by_step_size, rel=1e-14)


@pytest.mark.parametrize(
    ("form", "by_images"), [(unrolled, [1.0, 2.0]), (exact, [1.0, 2.0]), (released, [2.0, 2.0])]
)
def test_a_step_on_each_image_by_hand(form: Form, by_images: list[float]) -> None:
    """x = 4, then 4: as above, but dtheta_2/dx_1 = eta (1 - eta) = 1/4 and dtheta_2/dx_2 = eta = 1/2, times 4."""
    steps = [InnerStep(torch.tensor([0])), InnerStep(torch.tensor([1]))]
    found = form(*quadratic([4.0, 4.0]), steps)
    assert found.images.flatten().tolist() == pytest.approx(by_images, rel=1e-14)


def test_the_released_form_is_the_gradient_of_one_step_only() -> None:
    loss, segment, data = problem()
    one, five = (InnerTraining(count).steps(N, rng()) for count in (1, 5))
    for steps, least, most in ((one, -1.0, 1e-12), (five, 0.01, 0.9)):
        right, short = (form(loss, segment, data, steps) for form in (exact, released))
        assert least < gap(short.images, right.images) < most
        assert least < gap(short.step_size, right.step_size) < most
    assert 0.5 < cosine(short.images, right.images) < 0.999


def test_a_student_that_ends_where_the_client_did_has_no_loss_and_no_gradient() -> None:
    loss, segment, data = problem()
    steps = InnerTraining(1).steps(N, rng())
    theta = {name: value.clone().requires_grad_() for name, value in segment.start.items()}
    slopes = torch.autograd.grad(loss(theta, data.images, data.labels), list(theta.values()))
    end = {
        name: value.detach() - ETA * g
        for (name, value), g in zip(theta.items(), slopes, strict=True)
    }
    for form in (unrolled, exact, released):
        found = form(loss, Segment(segment.start, end), data, steps)
        assert float(found.loss) < 1e-25
        assert float(found.images.abs().max()) < 1e-10


# --- several clients ---


@pytest.mark.parametrize("form", [unrolled, exact, released])
@pytest.mark.parametrize("name", ["convnet", "mlp"])
def test_clients_together_are_clients_one_by_one(form: Form, name: str) -> None:
    problems = [problem(name, seed) for seed in (3, 4, 5)]
    loss, first, _ = problems[0]
    etas = torch.tensor([0.1, 0.3, 0.2], dtype=torch.float64)
    steps = InnerTraining(2, 4, DSA).steps(N, rng(7))
    segments, sets = [s for _, s, _ in problems], [d for _, _, d in problems]
    together = form(
        loss,
        Segment(first.start, {k: torch.stack([s.end[k] for s in segments]) for k in first.end}),
        SyntheticSet(
            torch.stack([d.images for d in sets]), torch.stack([d.labels for d in sets]), etas
        ),
        steps,
    )
    for k, (segment, data) in enumerate(zip(segments, sets, strict=True)):
        alone = form(loss, segment, SyntheticSet(data.images, data.labels, etas[k]), steps)
        assert gap(together.images[k], alone.images) < 1e-9
        assert gap(together.step_size[k], alone.step_size) < 1e-9
        assert gap(together.loss[k], alone.loss) < 1e-9


# --- memory ---


class Saved:
    """Counts the bytes that autograd keeps for its backward passes, and their peak."""

    def __init__(self) -> None:
        self.held = self.peak = 0

    def pack(self, tensor: Tensor) -> Kept:
        return Kept(self, tensor)

    @staticmethod
    def unpack(kept: Kept) -> Tensor:
        return kept.tensor


class Kept:
    """A tensor that autograd keeps, until it drops it."""

    def __init__(self, account: Saved, tensor: Tensor) -> None:
        self.account, self.tensor = account, tensor
        account.held += tensor.numel() * tensor.element_size()
        account.peak = max(account.peak, account.held)

    def __del__(self) -> None:
        self.account.held -= self.tensor.numel() * self.tensor.element_size()


def peak(form: Form, count: int) -> int:
    loss, segment, data = problem()
    steps = InnerTraining(count).steps(N, rng())
    saved = Saved()
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
        form(loss, segment, data, steps)
    assert saved.held == 0
    return saved.peak


def test_the_graph_of_the_recursion_does_not_grow_with_the_steps() -> None:
    assert peak(unrolled, 8) > 3.5 * peak(unrolled, 2)
    for form in (exact, released):
        assert 0 < peak(form, 8) == peak(form, 2) < peak(unrolled, 2)


def test_what_is_given_is_not_changed() -> None:
    loss, segment, data = problem()
    given_tensors = [*segment.start.values(), *segment.end.values(), data.images, data.step_size]
    before = [tensor.clone() for tensor in given_tensors]
    for form in (unrolled, exact, released):
        found = form(loss, segment, data, InnerTraining(2).steps(N, rng()))
        assert not any(t.requires_grad for t in (found.loss, found.images, found.step_size))
    assert all(map(torch.equal, given_tensors, before))
    assert not any(tensor.requires_grad for tensor in given_tensors)


# --- the steps ---


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(0, 12), st.integers(1, 9), st.booleans())
def test_an_epoch_takes_every_image_once(epochs: int, batch: int, n: int, augments: bool) -> None:
    steps = InnerTraining(epochs, batch, DSA if augments else ()).steps(n, rng(5))
    assert all((step.draw is not None) == augments for step in steps)
    if batch in (0, *range(n, 13)):
        assert [step.batch for step in steps] == [None] * epochs
        return
    each = -(-n // batch)
    assert len(steps) == epochs * each
    for epoch in range(epochs):
        parts = [step.batch.tolist() for step in steps[epoch * each : (epoch + 1) * each]]
        assert sorted(place for part in parts for place in part) == list(range(n))
        assert [len(part) for part in parts[:-1]] == [batch] * (each - 1)


def test_epochs_differ_in_order_and_steps_in_augmentation() -> None:
    steps = InnerTraining(2, 10, DSA).steps(20, rng(5))
    assert not torch.equal(steps[0].batch, steps[2].batch)
    assert len({step.draw for step in steps}) == 4


def test_a_step_selects_and_augments_differentiably() -> None:
    """Rows 2 and 0 mirrored; the gradient of their sum is 1 there and 0 in row 1."""
    images = torch.arange(6.0).reshape(3, 1, 1, 2).requires_grad_()
    step = InnerStep(torch.tensor([2, 0]), augmentation.Draw("flip", (0.0,)))
    x, y = step.select(images, torch.tensor([7, 8, 9]))
    assert x.flatten().tolist() == [5, 4, 1, 0]
    assert y.tolist() == [9, 7]
    (slope,) = torch.autograd.grad(x.sum(), images)
    assert slope.flatten().tolist() == [1, 1, 0, 0, 1, 1]


def test_equal_generators_give_equal_bits() -> None:
    loss, segment, data = problem()

    def run(seed: int) -> Any:
        return exact(loss, segment, data, InnerTraining(2, 4, DSA).steps(N, rng(seed)))

    first, again, other = run(3), run(3), run(4)
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.step_size, again.step_size)
    assert not torch.equal(first.images, other.images)
