"""Where synthetic images start: at noise, plain or smooth, at means of a class or of few images, at real images.

Each start takes the real samples' classes ``labels``, int64 [n]; ``ipc``, the images of each class that these hold, 1
or more; an image's ``shape`` (C, H, W), or ``inputs``, which gives the normalised images, float [b, C, H, W], for
indices int64 [b]; and the source of its draws, on the labels' device. It returns images, float32 [m, C, H, W], and
their labels, int64 [m], ascending.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from synth.class_batches import ClassBatches

MEAN_OF = 10
"""The fewest images of a class of which its mean is a start."""

BESIDE_MEAN = 0.5
"""The standard deviation of the smooth noise upon a class's mean."""

_COARSER, _PIECE = 4, 256


def noise_start(
    labels: Tensor, ipc: int, shape: tuple[int, int, int], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return ``ipc`` images of standard Gaussian noise for every class that ``labels`` holds.

    Noise of unit variance in the normalised space has the scale of real images and no trace of
    them.
    """
    classes = torch.unique(labels).repeat_interleave(ipc)
    images = torch.randn(len(classes), *shape, generator=generator, device=labels.device)
    return images, classes


def real_start(
    inputs: Callable[[Tensor], Tensor], labels: Tensor, ipc: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return ``ipc`` random real images for every class that ``labels`` holds, without replacement.

    A class with fewer than ``ipc`` images gives each of them once. Their mean is then the class's own,
    so that matching, which moves means alone, has little or nothing to change them by: they leave as
    they are. The images are in memory of their own.
    """
    batches = ClassBatches.plan(labels, ipc)
    return inputs(batches.draw(generator)).clone(), batches.labels


def smooth_noise(images: int, shape: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """Return noise of low frequencies: Gaussian on a grid a quarter as fine, blown up bilinearly.

    It is scaled to a mean square of 1 over the whole set, as plain noise has it, and nothing else is done to it.

    Parameters
    ----------
    images
        How many, at least 1.
    shape
        An image's (channels, height, width). Its grid has a quarter of each side, rounded up, and at least 2.
    generator
        The source of the noise; its device is the images'.

    Returns
    -------
    float32 [images, C, H, W].
    """
    channels, *sides = shape
    grid = [max(2, -(-side // _COARSER)) for side in sides]
    noise = torch.randn(images, channels, *grid, generator=generator, device=generator.device)
    smooth = interpolate(noise, size=sides, mode="bilinear", align_corners=False)
    return smooth * smooth.square().mean().rsqrt()


def smooth_start(
    labels: Tensor, ipc: int, shape: tuple[int, int, int], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return ``ipc`` images of `smooth_noise` for every class that ``labels`` holds: no trace of real ones."""
    classes = torch.unique(labels).repeat_interleave(ipc)
    return smooth_noise(len(classes), shape, generator), classes


def mean_start(
    inputs: Callable[[Tensor], Tensor],
    labels: Tensor,
    ipc: int,
    shape: tuple[int, int, int],
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Return ``ipc`` times the mean of every class with smooth noise of deviation ``BESIDE_MEAN`` upon it.

    A class with fewer than ``MEAN_OF`` images begins as `smooth_start` has it: the mean of few shows them.
    """
    images, classes = smooth_start(labels, ipc, shape, generator)
    for one in torch.unique(labels):
        held = (labels == one).nonzero().flatten()
        if len(held) >= MEAN_OF:
            at = classes == one
            images[at] = images[at] * BESIDE_MEAN + _mean(inputs, held)
    return images, classes


def mix_start(
    inputs: Callable[[Tensor], Tensor],
    labels: Tensor,
    ipc: int,
    of: int,
    shape: tuple[int, int, int],
    generator: torch.Generator,
    *,
    small_as_noise: bool = True,
) -> tuple[Tensor, Tensor]:
    """Return ``ipc`` means of ``of`` distinct images of a class, for every class that ``labels`` holds.

    The images of one mean are drawn without replacement, those of different means by themselves. Such a mean has
    1 / sqrt(``of``) of an image's deviation from the class's mean; nothing is done about that.

    Parameters
    ----------
    of
        Images a mean, K, at least 1.
    small_as_noise
        Whether a class with fewer than ``of`` images begins as smooth noise; else it is left out.
    """
    images, classes = smooth_start(labels, ipc, shape, generator)
    kept = torch.ones_like(classes, dtype=torch.bool)
    for one in torch.unique(labels):
        held = (labels == one).nonzero().flatten()
        if len(held) < of:
            kept &= small_as_noise | (classes != one)
            continue
        for place in (classes == one).nonzero().flatten():
            drawn = torch.randperm(len(held), generator=generator, device=labels.device)[:of]
            images[place] = _mean(inputs, held[drawn])
    return images[kept], classes[kept]


def _mean(inputs: Callable[[Tensor], Tensor], positions: Tensor) -> Tensor:
    """Return the mean of the images at ``positions``, summed in pieces that bound memory."""
    total = torch.stack([inputs(piece).sum(0) for piece in torch.split(positions, _PIECE)]).sum(0)
    return total / len(positions)
