"""The server's training on images: its rates, its average, its ball and what it does to the images, by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from federation import run
from torch import Tensor, nn

from common.config.loading import load
from common.data.published.catalogue import describe
from common.division import Division
from common.draws.seeding import derive
from common.errors import ConfigError
from common.learning.augmentation import check_augmentation
from common.learning.run import Run
from common.learning.task import Classification
from common.learning.training import Local, train
from common.samples.inputs import Samples
from common.settings.fedavg import TrainingSettings
from common.settings.sections import ImageTrainingSettings
from strategies.surrogate import after_steps, rate, siamese, train_on_images
from synth import augmentation

Small = Callable[..., dict[str, Any]]


# ---- the schedule


@pytest.mark.parametrize(
    ("schedule", "steps", "factors"),
    [
        ("steps", 10, [1, 1, 1, 1, 1, 1, 0.3, 0.3, 0.09, 0.09]),
        ("steps", 1, [1]),
        ("cosine", 4, [1, 0.8535534, 0.5, 0.1464466]),
    ],
)
def test_the_rates_of_a_schedule(schedule: str, steps: int, factors: list[float]) -> None:
    factor = rate(schedule, steps)
    assert factor is not None
    assert [factor(done) for done in range(steps)] == pytest.approx(factors)


def test_a_constant_rate_is_left_alone() -> None:
    assert rate("constant", 10) is None


def slope(model: nn.Module, x: Tensor, targets: Tensor, positions: Tensor) -> Tensor:
    """A loss whose gradient is 1 in each parameter, everywhere."""
    return sum((p.sum() for p in model.parameters()), torch.zeros(()))


def line() -> tuple[nn.Module, Samples]:
    """Return a model of two parameters, both 0, and two images."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 1))
    nn.init.zeros_(model[1].weight)
    nn.init.zeros_(model[1].bias)
    return model, Samples.of(torch.zeros(2, 1, 1, 1), torch.zeros(2, dtype=torch.long))


def descend(local: Local, steps: int) -> list[float]:
    model, samples = line()
    settings, draws = TrainingSettings(lr=1.0, batch=2), torch.Generator().manual_seed(0)
    train(model, samples, settings, Classification(1), draws, local=local, steps=steps)
    return [float(p) for p in model.parameters()]


def test_each_step_has_its_own_rate() -> None:
    """Gradients of 1 at rates 1, .1 and .01 sum to 1.11."""
    rates = Local(objective=slope, rate=lambda done: 0.1**done)
    assert descend(rates, 3) == pytest.approx([-1.11, -1.11])


# ---- the average, and the ball


def ended(steps: int, radius: float, share: float) -> list[float]:
    """Return the mean of the last steps of -1, or where the last one ended where none is asked for."""
    model, samples = line()
    after, mean = after_steps(model, steps, radius, share)
    settings, draws = TrainingSettings(lr=1.0, batch=2), torch.Generator().manual_seed(0)
    local = Local(objective=slope, after_step=after)
    train(model, samples, settings, Classification(1), draws, local=local, steps=steps)
    return [float(p) for p in (model if mean is None else mean).parameters()]


@pytest.mark.parametrize(
    ("share", "value"),
    [(0.5, -3.5), (1.0, -2.5), (0.1, -4.0), (0.0, -4.0)],
)
def test_the_average_of_the_last_steps(share: float, value: float) -> None:
    """After four steps of -1 lie -1, -2, -3, -4: half of them are -3 and -4; a tenth is one, the last."""
    assert ended(4, 0.0, share) == pytest.approx([value, value])


def test_what_is_averaged_was_in_the_ball() -> None:
    """Each of three steps of (-1, -1) ends on the ball of radius sqrt(2) / 2, at (-.5, -.5), and so does their mean."""
    assert ended(3, 2**0.5 / 2, 1.0) == pytest.approx([-0.5, -0.5])


def test_without_ball_and_average_nothing_follows_a_step() -> None:
    assert after_steps(line()[0], 4, 0.0, 0.0) == (None, None)


# ---- what a step does to its images


def test_dsa_puts_each_batch_through_the_transform_that_was_drawn_for_its_step() -> None:
    images = torch.rand(3, 1, 8, 8)
    twice = [siamese(6, torch.Generator().manual_seed(5)) for _ in range(2)]
    steps = [[augment(images, None) for _ in range(6)] for augment in twice]
    assert all(map(torch.equal, *steps))
    assert any(not torch.equal(changed, images) for changed in steps[0])
    assert len({tuple(changed.flatten().tolist()) for changed in steps[0]}) > 1
    apart = [augmentation.apply(images[:1], draw) for draw in _drawn(6)]
    assert all(torch.allclose(a[0], c[0]) for a, c in zip(apart, steps[0], strict=True))


def _drawn(steps: int) -> list[augmentation.Draw]:
    numbers = torch.Generator().manual_seed(derive(5, "augmentation"))
    return augmentation.draws(tuple(augmentation.TRANSFORMS), steps, numbers)


def trained(words: str) -> Tensor:
    """Return the weights that a server of these words learns of five images, as one row."""
    made: Run = Division(load({"method": "real", "set": f"model.width=4 {words}"})).run
    model = made.build_model()
    draws = torch.Generator().manual_seed(3)
    images = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    samples = Samples.of(images, torch.arange(5))
    objective = _loss
    train_on_images(made, model, samples, objective, draws)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def _loss(model: nn.Module, x: Tensor, targets: Tensor, positions: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), targets)


CHANGES = ("schedule=cosine", "schedule=steps", "weight_decay=0.1", "augment=flip_crop", "augment=dsa",
           "average=0.5", "ball=0.01", "momentum=0", "lr=0.01")  # fmt: skip


@pytest.mark.extended
def test_every_setting_changes_what_is_learned_and_does_so_again() -> None:
    usual = "image_training.steps=8 image_training.batch=2"
    found = [trained(f"{usual} image_training.{change}") for change in CHANGES]
    for one, change in zip(found, CHANGES, strict=True):
        assert torch.equal(one, trained(f"{usual} image_training.{change}"))
    plain = trained(usual)
    assert all(not torch.equal(one, plain) for one in found)
    assert len({float(one.sum()) for one in found}) == len(CHANGES)


def test_passes_are_the_steps_that_they_take() -> None:
    """Five images in batches of two are three steps a pass."""
    batch = "image_training.batch=2 image_training.schedule=cosine"
    assert torch.equal(
        trained(f"{batch} image_training.epochs=2"), trained(f"{batch} image_training.steps=6")
    )
    assert ImageTrainingSettings(epochs=2, batch=2).steps_on(5) == 6
    assert ImageTrainingSettings(steps=7, batch=2).steps_on(5) == 7
    assert ImageTrainingSettings(epochs=0).steps_on(5) == 0


@pytest.mark.sweep
@pytest.mark.parametrize("method", ["feddm", "real"])
def test_a_round_with_all_of_it_learns(small: Small, method: str) -> None:
    words = (
        "image_training.epochs=0 image_training.steps=30 image_training.batch=16 image_training.lr=0.05 "
        "image_training.schedule=cosine "
        "image_training.weight_decay=0.0005 image_training.augment=dsa image_training.average=0.3 image_training.ball=0"
    )
    one, other = (run(small(method=method, rounds=1, seed=4, set=words)).metrics() for _ in "12")
    assert one[-1]["test"] == other[-1]["test"]
    assert one[-1]["test"]["accuracy"] > 0.2


# ---- the configuration


def test_a_later_length_takes_the_place_of_an_earlier_other_one() -> None:
    """The data set's file says 100 passes; one that is resolved says one length, and resolves to itself."""
    config = load({"set": "image_training.steps=60"})
    assert (config.image_training.steps, config.image_training.epochs) == (60, 0)
    assert load(config.to_run_config()) == config
    own = load({"dataset": "images", "set": "images.classes=a,b image_training.epochs=7"})
    assert (own.image_training.steps, own.image_training.epochs) == (0, 7)


def test_a_method_that_trains_on_no_images_has_no_such_section() -> None:
    config = load({"method": "fedavg", "set": "image_training.lr=0.5"})
    assert "image_training" not in config.to_dict()
    assert config.image_training == ImageTrainingSettings()
    inside = load({"method": "fedssyn", "set": "fedssyn.inner=feddm image_training.lr=0.5"})
    assert inside.to_dict()["image_training"]["lr"] == 0.5


def test_images_too_small_for_a_crop_are_refused_and_dsa_takes_them() -> None:
    tiny = replace(describe("digits"), shape=(1, 4, 4))
    cropped = ImageTrainingSettings(augment="flip_crop")
    with pytest.raises(ConfigError, match=r"and 4x4 is too small: set image_training.augment=none"):
        check_augmentation("image_training", cropped, tiny)
    check_augmentation("image_training", ImageTrainingSettings(augment="dsa"), tiny)
