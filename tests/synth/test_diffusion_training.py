"""The training: it learns what there is to learn, and a broken one is an unbroken one to the bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from seeds import rng
from torch import Tensor

from synth import diffusion_training
from synth.diffusion import Schedule, denoising_losses, sample
from synth.diffusion_training import CLIP, DiffusionTraining, Plan
from synth.unet import UNet

SCHEDULE = Schedule.cosine(100)


def tiny(**sizes: Any) -> UNet:
    given = {"width": 8, "multipliers": (1, 2), "blocks": 1, "attention": (1,), "dropout": 0.1}
    return UNet((1, 8, 8), 2, rng(), **{**given, **sizes})


def halves(n: int) -> tuple[Tensor, Tensor]:
    """Return images that are bright on the left in class 0 and on the right in class 1, with a little noise."""
    labels = torch.arange(n) % 2
    images = torch.full((n, 1, 8, 8), -0.7)
    images[labels == 0, :, :, :4] = 0.7
    images[labels == 1, :, :, 4:] = 0.7
    return images + 0.1 * torch.randn(images.shape, generator=rng(9)), labels


PLAN = Plan(batch=4, lr=1e-3, decay=0.9)


def training(plan: Plan = PLAN, n: int = 10) -> DiffusionTraining:
    return DiffusionTraining(
        tiny(), SCHEDULE, *halves(n), generators=lambda e: rng(100 + e), plan=plan
    )


@pytest.mark.sweep
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stop", [1, 3, 5, 8])
def test_a_training_that_was_broken_off_is_an_unbroken_one(
    stop: int, precision: torch.dtype
) -> None:
    """Three epochs of three steps, broken off after a step in an epoch's middle or at its end."""
    plan = replace(PLAN, precision=precision)
    whole = training(plan)
    losses = list(whole.run(3))

    first = training(plan)
    states: list[dict[str, Tensor]] = []
    done: list[float] = []

    def keep() -> None:
        states.append(first.state())
        if len(states) == stop:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        done.extend(first.run(3, keep))
    second = training(plan)
    with torch.no_grad():
        for parameter in second.model.parameters():
            parameter.zero_()
    second.load({name: value.contiguous() for name, value in states[-1].items()})
    assert done + list(second.run(3)) == losses
    expected = whole.state()
    for name, value in second.state().items():
        assert torch.equal(value, expected[name]), name


def test_every_draw_comes_from_the_epochs_generator() -> None:
    torch.manual_seed(3)
    untouched = torch.get_rng_state()
    one, two = training(), training()
    other = DiffusionTraining(tiny(), SCHEDULE, *halves(10), lambda e: rng(200 + e), PLAN)
    losses = [list(t.run(1)) for t in (one, two, other)]
    assert losses[0] == losses[1] != losses[2]
    assert torch.equal(torch.get_rng_state(), untouched)


def test_the_first_steps_length_is_the_rate() -> None:
    """Adam's first step is the rate for every weight with a gradient."""
    trained = training(replace(PLAN, batch=10))
    before = trained.state()
    next(trained.run(1))
    after = trained.state()
    moved = torch.cat(
        [(after[n] - before[n]).abs().flatten() for n in before if n.startswith("model.last")]
    )
    assert moved.tolist() == pytest.approx([1e-3] * len(moved), rel=1e-3)


def test_the_average_by_hand() -> None:
    """With a decay of 0.2 it warms up over 1/10 and 2/11, then is 0.2; what is drawn is drawn by it."""
    trained, expected = training(replace(PLAN, decay=0.2)), training().state()
    names = [n.removeprefix("model.") for n in expected if n.startswith("model.")]
    weights = {n: expected[f"model.{n}"] for n in names}
    decays, last = iter((1 / 10, 2 / 11, 0.2)), []

    def after_step() -> None:
        now, decay = trained.state(), next(decays)
        for n in names:
            weights[n] = decay * weights[n] + (1 - decay) * now[f"model.{n}"]
            torch.testing.assert_close(now[f"average.{n}"], weights[n])
        last.append(now)

    list(trained.run(1, after_step))
    labels = torch.arange(4) % 2
    drawn = trained.draw(labels, rng(5))
    assert all(torch.equal(v, last[-1][n]) for n, v in trained.state().items() if "model" in n)
    with torch.no_grad():
        trained.model.load_state_dict({n: last[-1][f"average.{n}"] for n in names})
    shape = (1, 8, 8)
    assert torch.equal(drawn, sample(trained.model, SCHEDULE, labels, shape, rng(5), steps=100))


def test_the_gradient_is_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CLIP == 1
    monkeypatch.setattr(diffusion_training, "CLIP", 1e-3)
    trained = training(replace(PLAN, batch=10))
    next(trained.run(1))
    gradient = torch.cat(
        [p.grad.flatten() for p in trained.model.parameters() if p.grad is not None]
    )
    assert float(gradient.norm()) == pytest.approx(1e-3, rel=1e-3)


def test_an_epochs_loss_is_the_mean_over_its_images() -> None:
    """A rate that moves nothing leaves a network that predicts 0: the loss is the noise's mean square, 1.

    Ten images of 64 values in three batches of 4, 4 and 2: five standard errors, sqrt(2 / 640) each.
    """
    (loss,) = training(replace(PLAN, lr=1e-30)).run(1)
    assert loss == pytest.approx(1, abs=5 * (2 / 640) ** 0.5)


def test_the_loss_of_noise_multiplicity_is_the_mean_over_an_examples_draws() -> None:
    """Four (t, eps) of each of three examples: what DP-SGD clips is the gradient of such a mean."""
    model = tiny()
    with torch.no_grad():
        model.last.weight.normal_(generator=rng(1))
    x0, y = halves(3)
    t = torch.randint(1, 101, (4, 3), generator=rng(2))
    eps = torch.randn(4, 3, 1, 8, 8, generator=rng(3))
    x, labels = x0.repeat(4, 1, 1, 1), y.repeat(4)
    many = denoising_losses(model, SCHEDULE, x, labels, t.flatten(), eps.flatten(0, 1))
    for i in range(3):
        alone = [
            denoising_losses(
                model, SCHEDULE, x0[i : i + 1], y[i : i + 1], t[k, i : i + 1], eps[k, i : i + 1]
            )
            for k in range(4)
        ]
        expected = torch.cat(alone).mean()
        assert torch.allclose(many.view(4, 3)[:, i].mean(), expected, rtol=1e-4)


def test_images_without_labels_are_refused() -> None:
    images, labels = halves(4)
    for given in ((images, labels[:3]), (images[:0], labels[:0])):
        with pytest.raises(ValueError, match="do not go with"):
            DiffusionTraining(tiny(), SCHEDULE, *given, generators=rng, plan=PLAN)


def test_a_loss_that_is_no_number_ends_the_training() -> None:
    images, labels = halves(4)
    trained = DiffusionTraining(tiny(), SCHEDULE, images * float("nan"), labels, rng, PLAN)
    with pytest.raises(FloatingPointError, match="epoch 1"):
        list(trained.run(1))
