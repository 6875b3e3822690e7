"""The whole of FedDM's client step: against a plain float64 loop, and by what it must not do."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from matching import distil, matching_loss
from seeds import rng
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils._python_dispatch import TorchDispatchMode

from common.models import Classifier, build
from synth import augmentation
from synth.starts import ClassBatches, real_start, sample_ball

SETTINGS: dict[str, Any] = {
    "iterations": 3,
    "image_lr": 0.7,
    "image_momentum": 0.5,
    "real_batch": 4,
    "rho": 2.0,
}


def problem(
    norm: str = "instance", dtype: torch.dtype = torch.float64
) -> tuple[Classifier, Tensor, Tensor, Tensor, Tensor]:
    """Return a model, nine real images of classes 0, 2 and 4 (one of class 4) and a start of ipc 3, unordered."""
    model = build("convnet", (2, 8, 8), 5, depth=2, width=4, norm=norm, generator=rng(1)).to(dtype)
    labels = torch.tensor([2, 0, 0, 4, 2, 0, 2, 0, 0])
    start_labels = torch.tensor([4, 0, 2] * 3)
    real = torch.randn(9, 2, 8, 8, generator=rng(2), dtype=dtype)
    start = torch.randn(9, 2, 8, 8, generator=rng(3), dtype=dtype)
    return model, real, labels, start, start_labels


def plain_distil(
    model: Classifier,
    real: Tensor,
    labels: Tensor,
    images: Tensor,
    image_labels: Tensor,
    seed: int,
    *,
    syn_batch: int = 0,
    augment: str = "",
) -> tuple[Tensor, list[float]]:
    """The same draws, then everything the plain way: classes in a loop, two forward passes, momentum by hand."""
    draw, names = rng(seed), augmentation.parse(augment)
    augments = augmentation.draws(names, SETTINGS["iterations"], draw) if names else None
    images, image_labels = images[image_labels.argsort(stable=True)], image_labels.sort().values
    model = copy.deepcopy(model)
    centre = parameters_to_vector(model.parameters()).detach().clone()
    velocity, losses = torch.zeros_like(images), []
    for t in range(SETTINGS["iterations"]):
        w = sample_ball(centre, SETTINGS["rho"], draw)
        vector_to_parameters(w, model.parameters())
        chosen = ClassBatches.plan(labels, SETTINGS["real_batch"]).draw(draw)
        used = torch.arange(len(images))
        if syn_batch:
            used = ClassBatches.plan(image_labels, syn_batch).draw(draw)
        images = images.detach().requires_grad_()
        loss = torch.zeros((), dtype=images.dtype)
        for c in sorted(set(image_labels.tolist())):
            r = real[[int(i) for i in chosen if labels[i] == c]]
            s = images[[int(i) for i in used if image_labels[i] == c]]
            if augments:
                r, s = (augmentation.apply(x, augments[t]) for x in (r, s))
            for part in (model.embed, model):
                loss = loss + (part(r).mean(0) - part(s).mean(0)).square().sum()
        (gradient,) = torch.autograd.grad(loss, images)
        velocity = SETTINGS["image_momentum"] * velocity + gradient
        images = images.detach() - SETTINGS["image_lr"] * velocity
        losses.append(loss.item())
    return images, losses


@pytest.mark.parametrize("norm", ["instance", "batch"])
@pytest.mark.parametrize(
    "extra", [{}, {"syn_batch": 2}, {"augment": "color_crop_cutout_flip_scale_rotate"}]
)
def test_the_fast_form_is_the_plain_form(norm, extra):
    model, real, labels, start, start_labels = problem(norm)
    done = distil(
        model,
        lambda at: real[at],
        labels,
        start,
        start_labels,
        **SETTINGS,
        **extra,
        generator=rng(9),
    )
    images, losses = plain_distil(model, real, labels, start, start_labels, 9, **extra)
    assert done.losses.tolist() == pytest.approx(losses, rel=1e-9)
    torch.testing.assert_close(done.images, images, rtol=1e-8, atol=1e-9)
    assert done.labels.tolist() == [0] * 3 + [2] * 3 + [4] * 3
    assert done.images.dtype == start.dtype


def test_float32_is_the_plain_form_to_1e_5():
    model, real, labels, start, start_labels = problem(dtype=torch.float32)
    done = distil(
        model, lambda at: real[at], labels, start, start_labels, **SETTINGS, generator=rng(9)
    )
    _, losses = plain_distil(model, real, labels, start, start_labels, 9)
    assert done.losses.tolist() == pytest.approx(losses, rel=1e-5)


def test_nothing_handed_in_is_changed():
    model, real, labels, start, start_labels = problem("batch")
    model.eval()
    before = copy.deepcopy((model.state_dict(), real, labels, start, start_labels))
    distil(model, lambda at: real[at], labels, start, start_labels, **SETTINGS, generator=rng())
    assert not model.training
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[0][name]), name
    for now, then in zip((real, labels, start, start_labels), before[1:], strict=True):
        assert torch.equal(now, then)


def test_the_generator_decides_everything():
    model, real, labels, start, start_labels = problem()
    one, two, other = (
        distil(
            model, lambda at: real[at], labels, start, start_labels, **SETTINGS, generator=rng(seed)
        )
        for seed in (4, 4, 5)
    )
    assert torch.equal(one.images, two.images)
    assert not torch.equal(one.images, other.images)


def test_no_iteration_gives_the_start_by_class():
    model, real, labels, start, start_labels = problem()
    done = distil(
        model,
        lambda at: real[at],
        labels,
        start,
        start_labels,
        **SETTINGS | {"iterations": 0},
        generator=rng(),
    )
    assert torch.equal(done.images, start[[1, 4, 7, 2, 5, 8, 0, 3, 6]])
    assert done.losses.shape == (0,)
    done.images.zero_()
    assert start.any()


def test_going_on_from_the_last_images_is_a_start_like_any_other():
    model, real, labels, start, start_labels = problem()

    def go(images: Tensor, image_labels: Tensor, draw: torch.Generator, count: int) -> Any:
        settings = SETTINGS | {"iterations": count, "image_momentum": 0.0}
        return distil(
            model, lambda at: real[at], labels, images, image_labels, **settings, generator=draw
        )

    whole = go(start, start_labels, rng(7), 4)
    draw = rng(7)
    half = go(start, start_labels, draw, 2)
    torch.testing.assert_close(go(half.images, half.labels, draw, 2).images, whole.images)


def test_classes_that_have_no_start_image_are_left_out():
    model, real, labels, start, start_labels = problem()
    keep = start_labels != 2
    done = distil(
        model,
        lambda at: real[at],
        labels,
        start[keep],
        start_labels[keep],
        **SETTINGS,
        generator=rng(),
    )
    assert set(done.labels.tolist()) == {0, 4}
    asked: list[int] = []

    def watched(at: Tensor) -> Tensor:
        asked.extend(labels[at].tolist())
        return real[at]

    distil(model, watched, labels, start[keep], start_labels[keep], **SETTINGS, generator=rng())
    assert set(asked) == {0, 4}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"start_labels": torch.tensor([1] * 9)}, r"classes \[1\] have no real images"),
        ({"start_labels": torch.tensor([0])}, "m labels"),
    ],
)
def test_what_does_not_fit_is_refused(change, says):
    model, real, labels, start, start_labels = problem()
    given = SETTINGS | {"start_labels": start_labels, "generator": rng()} | change
    with pytest.raises(ValueError, match=says):
        distil(model, lambda at: real[at], labels, start, given.pop("start_labels"), **given)


def test_diverging_images_are_named_not_returned():
    model, real, labels, start, start_labels = problem("none", torch.float32)
    settings = SETTINGS | {"image_lr": 1e30, "iterations": 5}
    with pytest.raises(FloatingPointError, match=r"at iteration \d of 5.*learning rate"):
        distil(model, lambda at: real[at], labels, start, start_labels, **settings, generator=rng())


class Calls(TorchDispatchMode):
    """Counts the operations that hand a tensor's value to the host or have it wait."""

    SYNCING = ("_local_scalar_dense", "nonzero", "_unique", "unique", "is_nonzero", "equal")

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.count += name.startswith(self.SYNCING)
        return func(*args, **(kwargs or {}))


@pytest.mark.extended
@pytest.mark.parametrize("extra", [{}, {"augment": "color_crop_cutout_flip_scale_rotate"}])
def test_no_iteration_asks_a_tensor_for_its_value(extra):
    """What makes a GPU wait may happen before and after the loop, not in it."""
    model, real, labels, start, start_labels = problem()
    counts = []
    for iterations in (1, 6):
        settings = SETTINGS | {"iterations": iterations, "syn_batch": 2} | extra
        with Calls() as calls:
            distil(
                model, lambda at: real[at], labels, start, start_labels, **settings, generator=rng()
            )
        counts.append(calls.count)
    assert counts[0] == counts[1] > 0


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1)
    return ((images / 16 - 0.3) / 0.38)[:600], torch.tensor(data.target[:600])


def test_matching_from_real_images_at_least_halves_the_loss(digits):
    """On weights and batches that stay fixed, so that no luck of a draw helps."""
    images, labels = digits
    model = build("convnet", (1, 8, 8), 10, depth=2, width=16, generator=rng(0))
    start, start_labels = real_start(lambda at: images[at], labels, 5, rng(1))
    done = distil(
        model,
        lambda at: images[at],
        labels,
        start,
        start_labels,
        **SETTINGS | {"iterations": 60, "image_lr": 1.0, "real_batch": 64, "rho": 5.0},
        generator=rng(2),
    )

    def judge(syn: Tensor) -> float:
        total, probe, draw = 0.0, copy.deepcopy(model), rng(77)
        centre = parameters_to_vector(model.parameters()).detach()
        for _ in range(5):
            vector_to_parameters(sample_ball(centre, 5.0, draw), probe.parameters())
            with torch.no_grad():
                total += matching_loss(probe, images, labels, syn, start_labels).item()
        return total

    assert judge(done.images) <= 0.5 * judge(start)
    assert done.losses[-10:].mean() < 0.6 * done.losses[:10].mean()


class Sigmoid(Classifier):
    """The model of the paper's Figure 1, sigmoid(w x): h = x, z = w x."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def embed(self, x: Tensor) -> Tensor:
        return x.flatten(1)

    def classify(self, h: Tensor) -> Tensor:
        return h * self.w


@pytest.mark.parametrize("seed", range(3))
def test_figure_1_the_surrogate_is_closer_than_the_tangent(seed):
    """100 points x ~ N(0, 1), 20 synthetic ones matched around w = 0, binary cross-entropy.

    The paper prints a label rule that is 0.1 on both sides of zero; here P(y = 1) = 0.9 for x >= 0
    and 0.1 below.
    """
    draw = rng(seed)
    x = torch.randn(100, dtype=torch.float64, generator=draw)
    flips = torch.rand(100, dtype=torch.float64, generator=draw) < 0.1
    y = ((x >= 0) ^ flips).long()
    points = x.view(-1, 1, 1, 1)
    start, labels = real_start(lambda at: points[at], y, 10, draw)
    done = distil(
        Sigmoid(),
        lambda at: points[at],
        y,
        start,
        labels,
        **SETTINGS | {"iterations": 200, "image_lr": 0.2, "real_batch": 100, "rho": 5.0},
        generator=draw,
    )
    shares = torch.bincount(y).double() / len(y)

    def risk(inputs: Tensor, targets: Tensor, weights: Tensor, w: float) -> float:
        each = F.binary_cross_entropy_with_logits(
            w * inputs.flatten(), targets.double(), reduction="none"
        )
        return float((each * weights).sum())

    of_real = torch.full((100,), 0.01, dtype=torch.float64)
    of_syn = shares[done.labels] / 10
    slope = float(((0.5 - y.double()) * x).mean())
    surrogate = tangent = 0.0
    for step in range(-20, 21):
        w = step / 4
        true = risk(x, y, of_real, w)
        surrogate += abs(risk(done.images, done.labels, of_syn, w) - true)
        tangent += abs(math.log(2) + slope * w - true)
    assert surrogate < 0.25 * tangent
