"""Where the synthetic batches of FedSynth start: labels by frequency; noise, or class means under noise."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def draw_labels(pool: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return labels of ``shape``, int64, each drawn from ``pool`` [n], so by the classes' frequencies.

    Each is drawn by itself: for text the targets of a sequence are single tokens, never a sequence
    that somebody wrote.
    """
    places = torch.randint(len(pool), shape, generator=generator, device=pool.device)
    return pool[places]


def even_labels(classes: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return labels of ``shape``, int64, each class as often as any other, or once more, in an order that is drawn."""
    count = math.prod(shape)
    order = torch.randperm(count, generator=generator, device=generator.device)
    first = torch.randperm(classes, generator=generator, device=generator.device)
    return first[order % classes].view(shape)


def label_logits(labels: Tensor, classes: int, height: float) -> Tensor:
    """Return logits float32 [..., classes] whose softmax leans to ``labels`` [...]: ``height`` there, 0 elsewhere."""
    return torch.nn.functional.one_hot(labels, classes).float() * height


def noise(shape: tuple[int, ...], deviation: float, generator: torch.Generator) -> Tensor:
    """Return Gaussian noise float32 of ``shape`` and this standard deviation, on the generator's device."""
    return torch.randn(shape, generator=generator, device=generator.device) * deviation


def class_means(inputs: Tensor, targets: Tensor, classes: int) -> Tensor:
    """Return the mean input of every class, [classes, ...]; zero for a class without one.

    For text ``inputs`` are vectors [n, T, d] with a target each, [n, T], and the mean of a class is
    that of the vectors behind which its token came.

    Parameters
    ----------
    inputs
        float [*t, ...], the first dimensions those of ``targets``.
    targets
        int64 [*t].
    """
    flat = inputs.reshape(targets.numel(), *inputs.shape[targets.ndim :])
    sums = torch.zeros(classes, *flat.shape[1:], dtype=flat.dtype, device=flat.device)
    sums.index_add_(0, targets.reshape(-1), flat)
    counts = torch.bincount(targets.reshape(-1), minlength=classes).clamp_min(1)
    return sums / counts.reshape(-1, *[1] * (flat.ndim - 1)).to(flat.dtype)
