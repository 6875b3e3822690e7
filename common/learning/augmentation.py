"""Augmentation of real training images, a batch at a time, as the federated papers' baselines have it on CIFAR-10."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from common.draws.seeding import derive
from common.errors import ConfigError
from common.samples.dataset import DatasetInfo
from common.settings.fedavg import TrainingSettings
from common.settings.sections import ImageTrainingSettings
from synth.row_draws import RowDraws, integers

PAD = 4


def flip_crop(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return a random crop of each image, at its own size, from it padded by 4 reflected pixels; half are flipped.

    ``images`` are [n, C, H, W], both sides longer than 4; draws are for one after the other.
    """
    n, on = len(images), generator.device
    corners = torch.randint(2 * PAD + 1, (2, n, 1), generator=generator, device=on)
    flipped = torch.randint(2, (n, 1), generator=generator, device=on)
    return _cropped(images, corners.to(images.device), flipped.to(images.device))


def _cropped(images: Tensor, corners: Tensor, flipped: Tensor) -> Tensor:
    """Return the crops with upper left corners at ``corners`` [2, n, 1] less 4; 1 in ``flipped`` [n, 1] mirrors."""
    n, (height, width) = len(images), images.shape[-2:]
    corners = corners - PAD
    rows = _reflected(corners[0] + torch.arange(height, device=images.device), height)
    columns = torch.arange(width, device=images.device)
    columns = _reflected(
        corners[1] + torch.where(flipped == 1, width - 1 - columns, columns), width
    )
    image = torch.arange(n, device=images.device)[:, None, None]
    # Indices next to the slice of the channels put these last.
    return images[image, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def _reflected(places: Tensor, side: int) -> Tensor:
    """Return where the image continues outside itself: -1 is 1, ``side`` is ``side - 2``."""
    return side - 1 - (side - 1 - places.abs()).abs()


def augmented(
    settings: TrainingSettings, generator: torch.Generator
) -> Callable[[Tensor, RowDraws | None], Tensor]:
    """Return the augmentation of a batch's inputs, which uses the examples' own draws if they are given.

    Else they come from a generator of their own, derived from the seed of the one that orders the batches: that one
    draws what it draws without augmentation.
    """
    if settings.augment == "none":
        return lambda inputs, rows: inputs
    seed = derive(generator.initial_seed(), "augmentation")
    draws = torch.Generator(generator.device).manual_seed(seed)

    def flip_and_crop(inputs: Tensor, rows: RowDraws | None) -> Tensor:
        if rows is None:
            return flip_crop(inputs, draws)
        corners = integers(rows, 2 * PAD + 1, 2, 1).movedim(1, 0)
        return _cropped(inputs, corners, integers(rows, 2, 1))

    return flip_and_crop


def check_augmentation(section: str, settings: object, info: DatasetInfo) -> None:
    """Refuse to augment what cannot be; ConfigError if text, or images too small to be reflected, were to be."""
    if not isinstance(settings, TrainingSettings | ImageTrainingSettings):
        return
    if settings.augment == "none":
        return
    asked = f"{section}.augment={settings.augment}"
    if not info.has_images:
        raise ConfigError(
            f"{asked} changes images, and {info.name} is text: set {section}.augment=none"
        )
    if settings.augment == "flip_crop" and min(info.shape[1:]) <= PAD:
        height, width = info.shape[1:]
        raise ConfigError(
            f"{asked} reflects {PAD} pixels at an image's edge, and {height}x{width} is too small: set "
            f"{section}.augment=none"
        )
