"""FedSynth's mathematics: steps along synthetic batches, and the gradient that runs back through them."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from seeds import rng
from torch import Tensor, nn

from synth.descent import SGD, Adam
from synth.starts import draw_labels, mean_inputs
from synth.synthetic_updates import (
    Batches,
    client_update,
    distance,
    distil,
    loss_of,
    real_loss,
)

CLASSES, PIXELS = 4, 6


def network(activation: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(PIXELS, 7), activation, nn.Linear(7, CLASSES)).to(dtype)


def start_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def batches(
    m: int,
    b: int,
    *,
    soft: bool,
    dtype: torch.dtype = torch.float64,
    seed: int = 1,
    step: float = 0.7,
) -> Batches:
    g = rng(seed)
    inputs = torch.randn(m, b, PIXELS, generator=g, dtype=dtype)
    hard = torch.randint(CLASSES, (m, b), generator=g)
    labels = torch.randn(m, b, CLASSES, generator=g, dtype=dtype) if soft else hard
    return Batches(inputs, labels, torch.tensor(step, dtype=dtype))


def real_data(n: int = 12, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    g = rng(9)
    return torch.randn(n, PIXELS, generator=g, dtype=dtype), torch.randint(
        CLASSES, (n,), generator=g
    )


@pytest.mark.sweep
@pytest.mark.parametrize("activation", [nn.Tanh(), nn.ReLU()])
@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("kind", ["loss", "distance", "both"])
@pytest.mark.parametrize("part", ["inputs", "labels", "step_size"])
@pytest.mark.parametrize("raw", [False, True])
def test_the_gradient_is_that_of_finite_differences(
    activation: nn.Module, m: int, kind: str, part: str, raw: bool
) -> None:
    model = network(activation)
    loss, w = loss_of(model, F.cross_entropy, raw=raw), start_of(model)
    x, y = real_data()
    end = {name: value + 0.1 * torch.sin(value * 50) for name, value in w.items()}
    near, good = distance(w, end), lambda p: loss(p, x, y)
    objective = {"loss": good, "distance": near, "both": lambda w: good(w) + near(w)}[kind]
    s = batches(m, 2, soft=True)
    moved = getattr(s, part).clone().requires_grad_()
    value = objective(client_update(loss, w, replace(s, **{part: moved})))
    (slope,) = torch.autograd.grad(value, moved)

    def at(tensor: Tensor) -> float:
        return float(objective(client_update(loss, w, replace(s, **{part: tensor}))))

    flat, h = getattr(s, part).reshape(-1), 1e-5
    numeric = torch.zeros_like(flat)
    for i in range(len(flat)):
        up, down = flat.clone(), flat.clone()
        up[i] += h
        down[i] -= h
        shape = getattr(s, part).shape
        numeric[i] = (at(up.reshape(shape)) - at(down.reshape(shape))) / (2 * h)
    assert (
        float(numeric.norm()) > 1e-3
    )  # S is moved at all, which the implementations that were found do not do
    assert float((slope.reshape(-1) - numeric).norm() / numeric.norm()) < 1e-6


def test_a_linear_models_steps_and_slope_are_those_worked_out_by_hand() -> None:
    model = nn.Linear(1, 1, bias=False).double()
    loss = loss_of(model, lambda out, target: 0.5 * (out - target).square().mean())
    w = {"weight": torch.tensor([[2.0]], dtype=torch.float64)}
    x = torch.tensor([[[3.0]], [[1.0]]], dtype=torch.float64).requires_grad_()
    # Float targets are taken through a softmax, which over one class is 1 whatever the logit.
    s = Batches(
        x, torch.zeros(2, 1, 1, dtype=torch.float64), torch.tensor(0.1, dtype=torch.float64)
    )
    end = client_update(loss, w, s)["weight"]
    # w1 = w - .1 x1 (x1 w - 1) = 2 - .1 * 3 * 5 = .5;  w2 = w1 - .1 x2 (x2 w1 - 1) = .5 + .05
    assert float(end.detach()) == pytest.approx(0.55, abs=1e-15)
    (slope,) = torch.autograd.grad(end.sum(), x)
    # dw1/dx1 = -.1 (2 x1 w - 1) = -1.1, dw2/dw1 = 1 - .1 x2^2 = .9; dw2/dx2 = -.1 (2 x2 w1 - 1) = 0
    assert slope.flatten().tolist() == pytest.approx([-0.99, 0.0], abs=1e-14)


def test_labels_as_they_are_scale_the_slope_as_cross_entropy_worked_out_by_hand() -> None:
    """The slope of -sum_c y_c log p_c in the logits is (sum_c y_c) p - y, whatever the signs of y."""
    model = nn.Linear(1, 2, bias=False).double()
    w = {"weight": torch.tensor([[1.0], [0.0]], dtype=torch.float64)}
    y, x, p = torch.tensor([[[3.0, -1.0]]], dtype=torch.float64), 2.0, 1 / (1 + math.exp(-2.0))
    s = Batches(
        torch.tensor([[[x]]], dtype=torch.float64), y, torch.tensor(0.1, dtype=torch.float64)
    )
    end = (
        client_update(loss_of(model, F.cross_entropy, raw=True), w, s)["weight"].flatten().tolist()
    )
    slopes = [x * (2 * p - 3), x * (2 * (1 - p) + 1)]
    assert end == pytest.approx([1 - 0.1 * slopes[0], -0.1 * slopes[1]], abs=1e-14)


@pytest.mark.parametrize("soft", [False, True])
def test_the_steps_are_those_of_torchs_sgd(soft: bool) -> None:
    model = network(nn.ReLU())
    s = batches(4, 3, soft=soft)
    w = start_of(model)
    ours = client_update(loss_of(model, F.cross_entropy), w, s)
    optimiser = torch.optim.SGD(model.parameters(), lr=float(s.step_size))
    for x, y in zip(s.inputs, s.labels, strict=True):
        optimiser.zero_grad()
        F.cross_entropy(model(x), y.softmax(-1) if soft else y).backward()
        optimiser.step()
    for name, p in model.named_parameters():
        assert torch.allclose(ours[name], p.detach(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("soft", [False, True])
def test_a_replay_has_the_bits_of_the_steps_that_were_differentiated(soft: bool) -> None:
    model = network(nn.ReLU(), torch.float32)
    loss, w = loss_of(model, F.cross_entropy), start_of(model)
    s = batches(3, 2, soft=soft, dtype=torch.float32)
    tracked = client_update(loss, w, replace(s, inputs=s.inputs.clone().requires_grad_()))
    for name, value in client_update(loss, w, s).items():
        assert torch.equal(value, tracked[name])
        assert not value.requires_grad


def test_a_parameter_that_the_loss_does_not_use_stays() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.idle = nn.Parameter(torch.ones(3))
            self.head = nn.Linear(PIXELS, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(x)
            return out

    model = Half()
    w = start_of(model)
    ended = client_update(
        loss_of(model, F.cross_entropy), w, batches(2, 3, soft=False, dtype=torch.float32)
    )
    assert torch.equal(ended["idle"], w["idle"])
    assert not torch.equal(ended["head.weight"], w["head.weight"])


def setting() -> tuple[Callable[..., Tensor], dict[str, Tensor], Tensor, Tensor]:
    model = network(nn.ReLU())
    return loss_of(model, F.cross_entropy), start_of(model), *real_data(40)


@pytest.mark.parametrize("mover", [Adam, SGD])
@pytest.mark.parametrize("soft", [False, True])
def test_distilling_lowers_the_loss_on_the_real_data(
    mover: Callable[..., Adam | SGD], soft: bool
) -> None:
    loss, w, x, y = setting()
    objective = real_loss(loss, lambda i: x[i], y, 0, rng(0))
    begun = batches(2, 5, soft=soft)
    lr = 0.05 if mover is Adam else 2.0
    done = distil(loss, w, begun, objective, iterations=60, lr=lr, learn_step=False, mover=mover)
    assert float(done.losses[-1]) < float(done.losses[0]) - 0.01
    assert float(done.losses[-1]) < float(loss(w, x, y))
    assert torch.equal(done.batches.step_size, begun.step_size)
    if not soft:
        assert torch.equal(done.batches.labels, begun.labels)
    else:
        assert not torch.equal(done.batches.labels, begun.labels)


@pytest.mark.extended
def test_an_update_that_batches_can_write_is_found_again() -> None:
    loss, w, *_ = setting()
    target = client_update(loss, w, batches(1, 30, soft=True, seed=77))
    begun = batches(1, 30, soft=True, seed=3)
    done = distil(loss, w, begun, distance(w, target), iterations=1500, lr=0.03, learn_step=False)
    assert float(done.losses[0]) > 0.3
    assert float(distance(w, target)(client_update(loss, w, done.batches))) < 1e-3


def test_the_distance_is_nought_at_the_end_and_one_at_the_start() -> None:
    _, w, *_ = setting()
    end = {name: value + 1 for name, value in w.items()}
    assert float(distance(w, end)(end)) == 0
    assert float(distance(w, end)(w)) == pytest.approx(1)
    assert float(distance(w, w)(w)) == 0  # a site that did not move, not a division by zero


def test_a_learned_step_size_moves_and_stays_positive() -> None:
    loss, w, x, y = setting()
    objective = real_loss(loss, lambda i: x[i], y, 0, rng(0))
    begun = batches(1, 5, soft=True, step=5.0)
    done = distil(loss, w, begun, objective, iterations=30, lr=0.3, learn_step=True)
    assert 0 < float(done.batches.step_size) != 5.0


def test_no_iteration_leaves_the_set_as_it_was() -> None:
    loss, w, x, y = setting()
    begun = batches(1, 5, soft=True)
    objective = real_loss(loss, lambda i: x[i], y, 0, rng(0))
    done = distil(loss, w, begun, objective, iterations=0, lr=0.1, learn_step=True)
    assert torch.equal(done.batches.inputs, begun.inputs)
    assert float(done.batches.step_size) == pytest.approx(float(begun.step_size), rel=1e-15)
    assert done.losses.shape == (0,)


@pytest.mark.extended
def test_no_graph_outlives_its_iteration() -> None:
    loss, w, x, y = setting()
    seen: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def objective(w_syn: Mapping[str, Tensor]) -> Tensor:
        gc.collect()
        alive.append(sum(ref() is not None for ref in seen))
        seen.extend(weakref.ref(t) for t in w_syn.values())
        return loss(w_syn, x, y)

    distil(loss, w, batches(2, 3, soft=True), objective, iterations=5, lr=0.1, learn_step=True)
    assert max(alive) <= 4, "the weights of at most the iteration before may still have a name"


def test_the_estimate_of_the_loss_is_right_on_average_and_exact_over_everything() -> None:
    loss, w, x, y = setting()
    whole = float(loss(w, x, y))
    every = [real_loss(loss, lambda i: x[i], y, size, rng(0)) for size in (0, 40, 99)]
    assert [float(f(w)) for f in every] == [pytest.approx(whole)] * 3
    part = real_loss(loss, lambda i: x[i], y, 8, rng(0))
    drawn = torch.tensor([float(part(w)) for _ in range(400)])
    assert float(drawn.std()) > 0
    assert abs(float(drawn.mean()) - whole) < 5 * float(drawn.std()) / 20


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 5), st.integers(1, 4))
def test_labels_are_drawn_from_those_there_are(pool: list[int], m: int, b: int) -> None:
    drawn = draw_labels(torch.tensor(pool), (m, b), rng(0))
    assert drawn.shape == (m, b)
    assert set(drawn.flatten().tolist()) <= set(pool)


def test_labels_come_by_their_frequency() -> None:
    drawn = draw_labels(torch.tensor([0] * 30 + [2] * 10), (100, 100), rng(4)).flatten()
    share = float((drawn == 2).double().mean())
    assert abs(share - 0.25) < 5 * (0.25 * 0.75 / 10_000) ** 0.5


def test_class_means_are_those_of_each_class_for_images_and_for_text() -> None:
    images = torch.tensor([[1.0, 2], [3, 4], [10, 20]])
    means = mean_inputs(images, torch.tensor([1, 1, 3]), 4)
    assert means.tolist() == [[0, 0], [2, 3], [0, 0], [10, 20]]
    vectors = torch.tensor([[[1.0], [2]], [[3], [6]]])
    assert mean_inputs(vectors, torch.tensor([[0, 1], [1, 1]]), 2).tolist() == [
        [1.0],
        [pytest.approx(11 / 3)],
    ]
