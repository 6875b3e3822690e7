"""Augmentation of training images: what a batch can become, and that nothing else changes by it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from federation import run
from small import Small
from torch import Tensor, nn

import common.learning.training
from common.config.loading import load
from common.data.published.catalogue import describe
from common.division import Division
from common.errors import ConfigError
from common.learning.augmentation import check_augmentation, flip_crop
from common.learning.task import Classification
from common.learning.training import Local, evaluate, train
from common.samples.inputs import Samples
from common.settings.fedavg import TrainingSettings
from server_app.app import make_strategy


def numbered(n: int, height: int, width: int) -> Tensor:
    """Return images [n, 2, H, W] of which no two pixels are equal."""
    return torch.arange(n * 2 * height * width, dtype=torch.float32).reshape(n, 2, height, width)


def choices(image: Tensor) -> list[Tensor]:
    """Return the 81 crops of an image padded by torch's reflection, and each one flipped."""
    height, width = image.shape[-2:]
    padded = F.pad(image[None], (4, 4, 4, 4), mode="reflect")[0]
    crops = [padded[:, i : i + height, j : j + width] for i in range(9) for j in range(9)]
    return crops + [crop.flip(-1) for crop in crops]


@pytest.mark.sweep
@pytest.mark.parametrize("size", [(6, 10), (8, 11)])
def test_every_image_becomes_a_crop_of_itself_padded_or_that_flipped(size: tuple[int, int]) -> None:
    """One call for the whole batch; in 3,000 draws of an image each of the 162 turns up, none far too often."""
    images = numbered(2, *size)
    many = images.repeat_interleave(3000, 0)
    out = flip_crop(many, torch.Generator().manual_seed(1))
    assert out.shape == many.shape
    for image, drawn in zip(images, out.split(3000), strict=True):
        known = torch.stack(choices(image)).flatten(1)
        equal = (drawn.flatten(1)[:, None] == known[None]).all(2)
        assert bool((equal.sum(1) == 1).all())
        counts = equal.sum(0)  # 18.5 expected of each
        assert int(counts.min()) >= 3
        assert int(counts.max()) <= 42


def test_one_pixel_worked_out_by_hand() -> None:
    """A row 0 1 2 3 4 of which 4 are reflected on each side is 4 3 2 1 0 1 2 3 4 3 2 1 0."""
    image = torch.arange(5.0).expand(1, 1, 5, 5)
    rows = {
        tuple(flip_crop(image, torch.Generator().manual_seed(seed))[0, 0, 0].tolist())
        for seed in range(300)
    }
    padded = [4, 3, 2, 1, 0, 1, 2, 3, 4, 3, 2, 1, 0]
    crops = {tuple(map(float, padded[i : i + 5])) for i in range(9)}
    assert rows == crops | {crop[::-1] for crop in crops}


def settings(**changes: Any) -> TrainingSettings:
    return TrainingSettings(**{"epochs": 2, "lr": 0.1, "batch": 3, **changes})


def batches_of(chosen: TrainingSettings, seed: int = 1) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return what the objective is given at each step."""
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    task = Classification(4)

    def objective(model: nn.Module, x: Tensor, targets: Tensor, positions: Tensor) -> Tensor:
        seen.append((x.clone(), targets.clone(), positions.clone()))
        return task.loss(model(x), targets)

    samples = Samples.of(numbered(7, 5, 5), torch.arange(7) % 4)
    model = nn.Sequential(nn.Flatten(), nn.Linear(50, 4))
    train(
        model,
        samples,
        chosen,
        task,
        torch.Generator().manual_seed(seed),
        local=Local(objective=objective),
    )
    return seen


def test_batches_labels_and_positions_are_those_without_it() -> None:
    images = numbered(7, 5, 5)
    plainly, changed = batches_of(settings()), batches_of(settings(augment="flip_crop"))
    assert len(plainly) == len(changed) == 6
    for (x, y, at), (augmented, targets, positions) in zip(plainly, changed, strict=True):
        assert torch.equal(x, images[at])
        assert torch.equal(y, targets)
        assert torch.equal(at, positions)
        for image, out in zip(x, augmented, strict=True):
            assert any(torch.equal(out, choice) for choice in choices(image))
    assert any(
        not torch.equal(one[0], other[0]) for one, other in zip(plainly, changed, strict=True)
    )


def test_draws_come_from_the_seed_and_are_new_in_every_epoch() -> None:
    chosen = settings(augment="flip_crop", batch=7)
    (first, _, at), (second, _, again) = batches_of(chosen)
    assert not torch.equal(first[at.argsort()], second[again.argsort()])
    assert torch.equal(batches_of(chosen)[0][0], first)
    other, _, places = batches_of(chosen, seed=2)[0]
    assert not torch.equal(other[places.argsort()], first[at.argsort()])


def test_evaluation_sees_the_images_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a run's settings say: ``evaluate`` takes none."""
    monkeypatch.setattr(common.learning.training, "augmented", None)
    samples = Samples.of(numbered(7, 5, 5), torch.arange(7) % 4)
    model = nn.Sequential(nn.Flatten(), nn.Linear(50, 4))
    assert evaluate(model, samples, Classification(4), 3).examples == 7


@pytest.mark.extended
def test_a_run_with_it_differs_and_is_the_same_again(small: Small) -> None:
    lines = [
        run(small(method="fedprox", rounds=1, seed=4, set=words)).metrics()[-1]["test"]["loss"]
        for words in ("", "fedavg.augment=flip_crop", "fedprox.augment=flip_crop")
    ]
    assert lines[0] != lines[1] == lines[2]


def test_text_is_refused_before_anything_is_read() -> None:
    config = load({"method": "fedavg", "dataset": "reddit", "set": "fedavg.augment=flip_crop"})
    with pytest.raises(ConfigError, match=r"fedavg.augment=flip_crop .* is text: set") as raised:
        make_strategy(Division(config).run)
    assert "\n" not in str(raised.value)


def test_images_too_small_to_be_reflected_are_refused() -> None:
    small = replace(describe("digits"), shape=(1, 4, 9))
    with pytest.raises(
        ConfigError, match=r"an image's edge, and 4x9 is too small: set topk.augment=none"
    ):
        check_augmentation("topk", settings(augment="flip_crop"), small)
    check_augmentation("topk", settings(), small)
