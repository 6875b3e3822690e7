"""DENSE's mathematics: each loss by hand, who is in which mode, what the pool keeps, and what is learned of digits."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from seeds import rng
from torch import Tensor, nn

from common.models import build
from synth.ensemble_distillation import (
    Distillation,
    Ensemble,
    ImageGenerator,
    Plan,
    adversarial_loss,
    crop_flip,
    generator_loss,
    kl_to_ensemble,
    start,
    statistics_distance,
)

#: a few steps of a few images
SMALL = Plan(steps=3, batch=6, student_batch=4, padding=1)


def logs(*rows: list[float]) -> Tensor:
    """Return logits whose softmax is the given probabilities."""
    return torch.tensor(rows, dtype=torch.float64).log()


# --- the generator of images ---


def test_the_network_has_the_released_size() -> None:
    """257 * 8,192; norms 256, 256, 128; convolutions 128 * 128 * 9, 128 * 64 * 9, 64 * 3 * 9 + 3."""
    model = start((3, 32, 32), rng())
    expected = 257 * 8_192 + 256 + 147_456 + 256 + 73_728 + 128 + 1_731
    assert sum(p.numel() for p in model.parameters()) == expected == 2_328_899


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 4, 12)])
def test_images_lie_in_0_to_1_and_have_the_data_sets_shape(shape: tuple[int, int, int]) -> None:
    model = start(shape, rng(), noise=5, width=4)
    with torch.no_grad():
        model.layers[-2].weight.mul_(1_000)  # far into both ends
    images = model(torch.randn(9, 5, generator=rng(1))).detach()
    assert images.shape == (9, *shape)
    assert 0 <= float(images.min()) < 0.01
    assert 0.99 < float(images.max()) <= 1


@pytest.mark.parametrize("shape", [(1, 30, 28), (1, 28, 30), (3, 0, 8)])
def test_other_sides_are_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=f"not {shape[1]}x{shape[2]}"):
        ImageGenerator(shape)


def test_the_weights_are_drawn_anew_from_the_generator_alone() -> None:
    before = torch.get_rng_state()
    model = start((1, 8, 8), rng(1), noise=100)
    first = [p.clone() for p in model.parameters()]
    model.reset(rng(2))
    assert not any(
        torch.equal(p, q) for p, q in zip(model.parameters(), first, strict=True) if p.any()
    )
    model.reset(rng(1))
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), first, strict=True))
    assert torch.equal(before, torch.get_rng_state())
    linear, norm = model.layers[0], model.layers[2]
    assert float(linear.weight.detach().mean()) == pytest.approx(0, abs=5e-4)  # 5 standard errors
    assert float(linear.weight.detach().std()) == pytest.approx(0.02, rel=0.02)
    assert float(norm.weight.detach().mean()) == pytest.approx(1, abs=0.01)
    assert not any(layer.bias.any() for layer in (linear, norm, model.layers[-2]))


# --- crops ---


@settings(deadline=None)  # a busy machine is no failure
@given(st.integers(0, 9), st.integers(0, 3), st.booleans())
def test_a_crop_is_a_window_of_the_padded_image_mirrored_or_not(
    seed: int, padding: int, flip: bool
) -> None:
    images = torch.rand(5, 2, 4, 6, generator=rng(seed)) + 1
    padded = F.pad(images, (padding,) * 4)
    for image, crop in zip(padded, crop_flip(images, rng(seed), padding, flip), strict=True):
        windows = [
            window.flip(-1) if mirrored else window
            for top in range(2 * padding + 1)
            for left in range(2 * padding + 1)
            for window in [image[:, top : top + 4, left : left + 6]]
            for mirrored in ([False, True] if flip else [False])
        ]
        assert any(torch.equal(crop, window) for window in windows)


def test_corners_and_mirrorings_are_each_images_own_and_uniform() -> None:
    """A 1 in the middle of 3x3 says where its window was; the 2 to its right, whether it was mirrored."""
    image = torch.zeros(1, 1, 3, 3)
    image[0, 0, 1, 1:] = torch.tensor([1.0, 2.0])
    crops = crop_flip(image.expand(9_000, -1, -1, -1), rng(1), padding=1)[:, 0]
    places = (crops == 1).flatten(1).float()
    assert (places.sum(0) - 1_000).abs().max() < 150  # 5 standard deviations of 30
    middle = crops[(crops[:, 1, 1] == 1)]
    right, left = (float((middle[:, 1, at] == 2).float().mean()) for at in (2, 0))
    assert right + left == pytest.approx(1)
    assert right == pytest.approx(0.5, abs=0.08)


def test_gradients_reach_the_pixels_that_are_seen() -> None:
    images = torch.zeros(4, 1, 4, 4, requires_grad=True)
    weights = torch.arange(1.0, 17.0).view(4, 4)
    (slope,) = torch.autograd.grad((crop_flip(images, rng(2), 2) * weights).sum(), images)
    where = crop_flip(torch.arange(1.0, 17.0).view(1, 1, 4, 4).expand(4, -1, -1, -1), rng(2), 2)
    for one, seen in zip(slope[:, 0], where[:, 0], strict=True):
        for pixel in range(16):
            expected = weights[seen == pixel + 1].sum()
            assert float(one.flatten()[pixel]) == float(expected)


# --- the ensemble ---


@pytest.mark.parametrize("count", [1, 3, 7])
def test_an_ensemble_of_any_number_answers_with_the_mean_of_the_logits(count: int) -> None:
    generator = rng(count)
    weights = [torch.randn(3, 12, generator=generator) for _ in range(count)]
    models = []
    for weight in weights:
        linear = nn.Linear(12, 3, bias=False)
        with torch.no_grad():
            linear.weight.copy_(weight)
        models.append(nn.Sequential(nn.Flatten(), nn.Dropout(0.5), linear))
    x = torch.randn(5, 3, 2, 2, generator=generator)
    expected = np.mean([x.flatten(1).numpy() @ weight.numpy().T for weight in weights], 0)
    np.testing.assert_allclose(Ensemble(models)(x).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_an_ensemble_of_other_architectures() -> None:
    models = [build(name, (1, 28, 28), 10, width=8, generator=rng(1)) for name in ("mlp", "cnn")]
    x = torch.randn(2, 1, 28, 28, generator=rng(2))
    alone = [model(x).detach() for model in models]
    torch.testing.assert_close(Ensemble(models)(x), (alone[0] + alone[1]) / 2)


def test_no_model_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a model"):
        Ensemble([])


def normed(mean: list[float], variance: list[float]) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(len(mean))
    norm.running_mean = torch.tensor(mean)
    norm.running_var = torch.tensor(variance)
    return norm


def test_the_distance_of_statistics_by_hand() -> None:
    """Channel 0: values 0, 2, 4, 6, mean 3, variance 5; channel 1: all 1, variance 0.

    Running means 0 and 5: gaps 3 and -4, 5 long; running variances 17 and 9: gaps -12 and -9, 15 long.
    """
    x = torch.tensor([[[[0.0, 2.0]], [[1.0, 1.0]]], [[[4.0, 6.0]], [[1.0, 1.0]]]])
    norm = normed([0.0, 5.0], [17.0, 9.0])
    assert float(statistics_distance(x, norm)) == pytest.approx(20, rel=1e-6)


def test_the_distance_is_of_what_enters_each_norm_of_each_model() -> None:
    """A norm at mean 0 and variance 1, a factor of 1 or 2, and a norm at (1, 1) or (0, 4); eps is 0."""
    x = torch.tensor([1.0, 3.0]).view(2, 1, 1, 1)  # mean 2, variance 1

    class Twice(nn.Module):
        def __init__(self, factor: float, last: nn.BatchNorm2d) -> None:
            super().__init__()
            self.first, self.last, self.factor = normed([0.0], [1.0]), last, factor
            self.first.eps = self.last.eps = 0.0

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.last(self.first(x) * self.factor)
            return logits.flatten(1)

    ensemble = Ensemble([Twice(1, normed([1.0], [1.0])), Twice(2, normed([0.0], [4.0]))])
    # first norms 2 + 0 each; then |2 - 1| + |1 - 1|, and 2x has mean 4, variance 4: |4 - 0| + |4 - 4|
    logits, distance = ensemble.judge(x)
    assert float(distance) == pytest.approx(2 + 2 + 1 + 4, rel=1e-6)
    # (x - 1) / 1 and 2x / 2
    assert logits.flatten().tolist() == pytest.approx([(0 + 1) / 2, (2 + 3) / 2])
    again = ensemble.judge(x)[1]
    assert float(again) == float(
        distance
    )  # nothing moved the statistics, and no hook is left behind


def test_models_without_batch_norm_have_no_distance() -> None:
    models = [build("convnet", (1, 8, 8), 3, depth=1, width=4, generator=rng(1)) for _ in range(2)]
    x = torch.randn(2, 1, 8, 8, generator=rng(2))
    logits, distance = Ensemble(models).judge(x)
    assert float(distance) == 0
    assert torch.equal(logits, Ensemble(models)(x))


# --- the losses ---


def test_the_divergences_direction_and_temperature_by_hand() -> None:
    """Ensemble (1/2, 1/2), student (1/4, 3/4): ln(2 / sqrt 3) = .144; the other way it would be .131.

    At T = 2 the ensemble stays and the student's odds are 1 : sqrt 3; four times ln of the arithmetic over the
    geometric mean of 1 and sqrt 3.
    """
    student, ensemble = logs([0.25, 0.75]), logs([0.5, 0.5])
    assert kl_to_ensemble(student, ensemble).tolist() == pytest.approx([math.log(2 / math.sqrt(3))])
    root = math.sqrt(3)
    expected = 4 * math.log((1 + root) / 2 / math.sqrt(root))
    assert kl_to_ensemble(student, ensemble, 2.0).tolist() == pytest.approx([expected])


def test_the_adversarial_loss_counts_where_the_two_decide_otherwise() -> None:
    """Of three images two are decided alike, however far apart; the third's KL is .7 ln 7 + .2 ln(1/4) + .1 ln 1."""
    ensemble = logs([0.9, 0.05, 0.05], [0.4, 0.3, 0.3], [0.7, 0.2, 0.1])
    student = logs([0.4, 0.3, 0.3], [0.9, 0.05, 0.05], [0.1, 0.8, 0.1])
    expected = 0.7 * math.log(7) + 0.2 * math.log(0.25)
    assert float(adversarial_loss(student, ensemble)) == pytest.approx(-expected / 3, rel=1e-12)
    assert float(adversarial_loss(student[:2], ensemble[:2])) == 0


def test_the_generators_loss_by_hand_with_each_of_its_weights() -> None:
    """CE: -ln .5; L_BN 3; L_div as ensemble (.5, .5 - 1e-9) against student (.25, .75): -ln(2 / sqrt 3)."""
    ensemble, student = logs([0.5, 0.5 - 1e-9]), logs([0.25, 0.75])
    y, distance = torch.tensor([0]), torch.tensor(3.0, dtype=torch.float64)
    parts = math.log(2), 3.0, -math.log(2 / math.sqrt(3))
    for weights in ((1, 1, 1), (1, 0, 0), (0, 2, 0), (0, 0, 5)):
        plan = Plan(matching=weights[0], statistics=weights[1], adversarial=weights[2])
        found = float(generator_loss(student, ensemble, distance, y, plan))
        expected = sum(w * part for w, part in zip(weights, parts, strict=True))
        assert found == pytest.approx(expected, rel=1e-7)


# --- an iteration ---


class Spy(nn.Module):
    """A classifier of 1x4x4 images with batch norm that notes its mode at each call, and what it was given."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(1)
        self.linear = nn.Linear(16, 3)
        with torch.no_grad():
            for parameter in self.linear.parameters():
                parameter.normal_(generator=rng(seed))
        self.modes: list[bool] = []
        self.given: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.modes.append(self.training)
        self.given.append(x.detach().clone())
        logits: Tensor = self.linear(self.norm(x).flatten(1))
        return logits


def distillation(
    student: nn.Module | None = None,
    teacher: nn.Module | None = None,
    plan: Plan = SMALL,
) -> Distillation:
    return Distillation(
        student or Spy(1),
        Ensemble([teacher or Spy(2), Spy(3)]),
        start((1, 4, 4), rng(4), noise=5, width=3),
        3,
        lambda images: 2 * images - 1,
        lambda iteration: rng(100 + iteration),
        plan=plan,
    )


def test_the_student_judges_in_evaluation_and_learns_in_training_and_its_teachers_never_do() -> (
    None
):
    student, teacher = Spy(1), Spy(2)
    teacher.train()
    before = student.norm.running_mean.clone()
    judged: list[Tensor] = []
    student.linear.register_forward_hook(
        lambda *_: None if student.training else judged.append(student.norm.running_mean.clone())
    )
    distillation(student, teacher).run_iteration()
    assert student.modes == [False] * 3 + [True] * 2  # 3 steps; 6 images in batches of 3 and 3
    assert all(torch.equal(mean, before) for mean in judged)
    assert not torch.equal(student.norm.running_mean, before)
    assert not any(teacher.modes)
    assert torch.equal(teacher.norm.running_mean, torch.zeros(1))


def test_the_student_and_the_ensemble_see_the_same_normalised_crops() -> None:
    student, teacher = Spy(1), Spy(2)
    distillation(student, teacher).run_iteration()
    assert len(student.given) == len(teacher.given) == 5
    for seen, taught in zip(student.given, teacher.given, strict=True):
        assert torch.equal(seen, taught)
        assert float(seen.min()) == -1  # what comes in from outside is black
        assert -1 <= float(seen.max()) <= 1


def test_the_batch_of_the_lowest_loss_joins_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses are put in: of three steps the second one's images stay, then the first one's of two equal ones."""
    shown: list[Tensor] = []
    order = [5.0, 1.0, 3.0, 2.0, 4.0, 2.0]

    class Shown(ImageGenerator):
        def forward(self, z: Tensor) -> Tensor:
            images = super().forward(z)
            shown.append(images.detach())
            return images

    def loss(student: Tensor, *_: object) -> Tensor:
        slope = student.sum()
        return slope - slope.detach() + order[len(shown) - 1]

    monkeypatch.setattr("synth.ensemble_distillation.generator_loss", loss)
    model = Shown((1, 4, 4), 5, 3)
    how = distillation(plan=replace(SMALL, lr=0.1))
    how._generator = model
    kept = [how.run_iteration().generator for _ in range(2)]
    assert kept == [1.0, 2.0]
    assert [len(images) for images in how.pool] == [6, 6]
    for images, step in zip(how.pool, (1, 3), strict=True):
        assert images.dtype == torch.uint8
        assert torch.equal(images, (shown[step] * 255).round().byte())
        assert not torch.equal(images, (shown[step + 1] * 255).round().byte())


def test_the_generator_and_z_both_move_against_the_loss() -> None:
    """With one step the images are the start's; with thirty, those of the same start have a lower loss."""
    losses = [
        distillation(plan=replace(SMALL, steps=steps, padding=0, flip=False))
        .run_iteration()
        .generator
        for steps in (1, 30)
    ]
    assert losses[1] < losses[0]
    z: list[Tensor] = []
    slopes: list[Tensor] = []

    class Noted(ImageGenerator):
        def forward(self, given: Tensor) -> Tensor:
            if not z:
                given.register_hook(lambda slope: slopes.append(slope.double()))
            z.append(given.detach().double())
            return super().forward(given)

    how = distillation(plan=replace(SMALL, lr=0.1))
    how._generator = Noted((1, 4, 4), 5, 3)
    how.run_iteration()
    # Adam's steps as published, with decays of .5 and .999
    first = slopes[0] / (slopes[0].abs() + 1e-8)
    mean = (0.25 * slopes[0] + 0.5 * slopes[1]) / 0.75
    square = (0.000999 * slopes[0].square() + 0.001 * slopes[1].square()) / (1 - 0.999**2)
    for step, expected in enumerate((first, mean / (square.sqrt() + 1e-8))):
        moved = (z[step] - z[step + 1]) / 0.1
        assert torch.allclose(moved, expected, rtol=1e-2, atol=1e-4)
    at_rest = start((1, 4, 4), rng(), noise=5, width=3)
    at_rest.reset(rng(100))
    for moved, begun in zip(how._generator.parameters(), at_rest.parameters(), strict=True):
        assert not torch.equal(moved, begun)


def test_the_students_pass_is_sgd_with_momentum_over_the_whole_pool() -> None:
    """Without crops, with a linear student and a batch of everything: two iterations by the formula.

    dL/dlogits of T^2 KL at temperature T is T (softmax(s/T) - softmax(t/T)) / n.
    """
    plan = replace(
        SMALL, steps=1, padding=0, flip=False, student_batch=100, temperature=4.0, student_lr=0.1
    )
    student = nn.Sequential(nn.Flatten(), nn.Linear(16, 3, bias=False))
    with torch.no_grad():
        student[1].weight.normal_(generator=rng(1))
    weight, moment = student[1].weight.detach().double().numpy().copy(), np.zeros((3, 16))
    teachers = [Spy(2).eval(), Spy(3).eval()]
    how = distillation(student, plan=plan)

    def softmax(z: np.ndarray) -> np.ndarray:
        e = np.exp(z - z.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    for _ in range(2):
        loss = how.run_iteration().student
        x = 2 * torch.cat(how.pool).float() / 255 - 1
        t = np.mean([teacher(x).detach().double().numpy() for teacher in teachers], 0) / 4
        rows = x.flatten(1).double().numpy()
        p, q = softmax(t), softmax(rows @ weight.T / 4)
        assert loss == pytest.approx(16 * (p * np.log(p / q)).sum(1).mean(), rel=1e-3)
        moment = 0.9 * moment + (4 * (q - p) / len(rows)).T @ rows
        weight = weight - 0.1 * moment
        np.testing.assert_allclose(student[1].weight.detach().numpy(), weight, rtol=1e-4, atol=1e-5)


def test_a_lone_image_behind_full_batches_is_no_batch() -> None:
    student = Spy(1)
    distillation(student, plan=replace(SMALL, batch=5)).run_iteration()
    assert [len(x) for x in student.given[3:]] == [3, 2]  # not 4 and 1


@pytest.mark.parametrize("whose", ["student", "generator"])
def test_a_loss_that_is_no_number_is_told(whose: str) -> None:
    student, plan = Spy(1), SMALL
    if whose == "generator":
        plan = replace(SMALL, matching=math.nan)
    else:
        student.norm.weight.register_hook(lambda slope: slope * math.nan)
    with pytest.raises(FloatingPointError, match=f"the {whose}'s loss .* iteration 1 of DENSE"):
        distillation(student, plan=plan).run_iteration()


# --- digits ---
