"""An update, what local training adds to a round's weights, as one flat tensor and back."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from common.wire.weights import Weights, WeightsSpec


def length(spec: WeightsSpec) -> int:
    """Return how many numbers an update has: those of the state's floating tensors."""
    sizes = zip(spec.shapes, spec.dtypes, strict=True)
    return sum(math.prod(shape) for shape, dtype in sizes if dtype.is_floating_point)


def difference(new: Weights, old: Weights) -> Tensor:
    """Return new - old over the floating tensors in the model's order, running statistics too: float32 [length]."""
    parts = [
        (new.read_only[name].float() - tensor.float()).flatten()
        for name, tensor in old.read_only.items()
        if tensor.is_floating_point()
    ]
    return torch.cat(parts)


def plus(weights: Weights, update: Tensor) -> Weights:
    """Return ``weights`` with a flat ``update``, floating [length], added in float64; integers are kept.

    Each tensor keeps its dtype and is rounded to it once.
    """
    sums, start = {}, 0
    for name, tensor in weights.read_only.items():
        if not tensor.is_floating_point():
            sums[name] = weights.tensors[name]
            continue
        part = update[start : start + tensor.numel()].view(tensor.shape)
        sums[name] = (tensor.double() + part).to(tensor.dtype)
        start += tensor.numel()
    return Weights(sums, weights.codec)
