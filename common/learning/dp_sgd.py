"""DP-SGD as the rule of the one local loop: Poisson samples for batches, and gradients clipped example by example."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from common.learning.training import GradientRule, Objective
from synth.linear_gradients import clipped_sum, finely
from synth.private_release import Gaussian, noisy_mean
from synth.row_draws import Layers, RowDraws


def dp_sgd(gaussian: Gaussian, expected: float) -> GradientRule:
    """Return what leaves a batch's noisy mean gradient in ``grad``; the mean loss, which is private, is NaN.

    Parameters
    ----------
    gaussian : Gaussian
        Clip and noise, other noise for each step.
    expected : float
        The divisor.
    """
    layers = Layers()

    def noisy_gradient(
        model: nn.Module, objective: Objective, *batch: Tensor, rows: RowDraws | None = None
    ) -> Tensor:
        device = batch[0].device

        def drawing(at: slice) -> AbstractContextManager[None]:
            return nullcontext() if rows is None else layers.drawing(rows.part(at), device)

        mechanism = finely(gaussian, model, expected)
        sums = clipped_sum(model, objective, batch, mechanism, drawing=drawing)
        slopes = noisy_mean(sums, mechanism, expected)
        for name, parameter in model.named_parameters():
            slope = slopes.get(name)
            parameter.grad = None if slope is None else slope.to(parameter.dtype)
        return torch.full((), math.nan, device=device)

    return noisy_gradient
