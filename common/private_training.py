"""DP-SGD as the rule of the one local loop: Poisson samples for batches, and gradients clipped example by example."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor, nn

from common.settings.sections import PrivacySettings
from common.settings.training import TrainingSettings
from common.training import Objective, Rule
from synth.private_gradients import clipped_sum, noisy_mean


@dataclass(frozen=True)
class PrivateSteps:
    """How many private steps a training takes, and with which chance each of them draws an example.

    Whoever knows the numbers that it was planned with knows these; nothing else decides them.

    Attributes
    ----------
    rate : float
        q, the chance of each example in each step.
    steps : int
        How many.
    expected : int
        How many examples a step draws in the mean, by which its sum is divided.
    """

    rate: float
    steps: int
    expected: int

    @classmethod
    def plan(cls, batch: int, epochs: int, pool: int, drawn: int = 0) -> PrivateSteps:
        """Return the steps in which as many examples are drawn, in the mean, as plain passes have.

        With q = B / n over all of n examples these are ceil(epochs / q).

        Parameters
        ----------
        batch : int
            B; a smaller pass gives all it has.
        epochs : int
            Passes.
        pool : int
            The examples that are drawn from, as many as are said to be there; at least 1.
        drawn : int
            The examples of a pass; 0: as many as the pool has.
        """
        a_pass = drawn or pool
        size = min(batch, a_pass)
        return cls.of(size, -(-epochs * a_pass // size), pool)

    @classmethod
    def of(cls, batch: int, steps: int, pool: int) -> PrivateSteps:
        """Return ``steps`` steps that draw ``batch`` of ``pool`` examples in the mean, or all of a smaller pool."""
        expected = min(batch, pool)
        return cls(expected / pool, steps, expected)


def planned(
    privacy: PrivacySettings, settings: TrainingSettings, pool: int, drawn: int = 0
) -> PrivateSteps:
    """Return the steps of a site's local training on ``pool`` examples of which a pass draws ``drawn``.

    Where the run keeps counts private these enter nothing: every site has the steps of ``privacy.examples``.
    """
    if privacy.counts == "one":
        pool, drawn = privacy.examples, 0
    return PrivateSteps.plan(settings.batch, settings.epochs, pool, drawn)


@dataclass(frozen=True)
class Privacy:
    """Clip and noise of a private step.

    Attributes
    ----------
    clip : float
        C, the longest that an example's gradient may be.
    noise_multiplier : float
        sigma; the noise on the sum has a standard deviation of sigma C.
    normal : callable
        (step, count) -> so many standard normal numbers, other ones for each step, from 0 on.
    """

    clip: float
    noise_multiplier: float
    normal: Callable[[int, int], Tensor]

    def rule(self, expected: float) -> Rule:
        """Return what leaves a batch's noisy mean gradient in ``grad``; the mean loss, which is private, is NaN.

        Parameters
        ----------
        expected : float
            The divisor.
        """
        steps = count()

        def noisy_gradient(model: nn.Module, objective: Objective, *batch: Tensor) -> Tensor:
            step = next(steps)
            sums = clipped_sum(model, objective, batch, self.clip)
            slopes = noisy_mean(
                sums,
                clip=self.clip,
                noise_multiplier=self.noise_multiplier,
                expected=expected,
                normal=lambda numbers: self.normal(step, numbers),
            )
            for name, parameter in model.named_parameters():
                parameter.grad = slopes.get(name)
            return torch.full((), math.nan, device=batch[0].device)

        return noisy_gradient
