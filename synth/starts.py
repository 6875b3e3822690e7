"""Where synthetic images start: at noise, or at real images."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from synth.class_batches import ClassBatches


def noise_start(
    labels: Tensor, ipc: int, shape: tuple[int, int, int], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return ``ipc`` images of standard Gaussian noise for every class that ``labels`` holds.

    Noise of unit variance in the normalised space has the scale of real images and no trace of
    them.

    Parameters
    ----------
    labels
        The real samples' classes, int64 [n].
    ipc
        Images a class, at least 1; a class with fewer real ones gets as many.
    shape
        An image's (channels, height, width).
    generator
        The source of the noise, on the device of ``labels``.

    Returns
    -------
    Images, float32 [m, C, H, W], and their labels, int64 [m], ascending.
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
    they are.

    Parameters
    ----------
    inputs
        Gives the normalised images, float [b, C, H, W], for indices int64 [b].
    labels
        The real samples' classes, int64 [n].
    ipc
        Images a class at most, at least 1.
    generator
        The source of the choice, on the device of ``labels``.

    Returns
    -------
    Images, float [m, C, H, W], in memory of their own, and their labels, int64 [m], ascending.
    """
    batches = ClassBatches.plan(labels, ipc)
    return inputs(batches.draw(generator)).clone(), batches.labels
