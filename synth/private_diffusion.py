"""DP-SGD for a diffusion model (Dockhorn et al., 2023): one gradient an example, of several of its noised versions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from synth.diffusion import Schedule, denoising_losses
from synth.private_gradients import clipped_sum, noisy_mean
from synth.private_release import Gaussian
from synth.row_draws import RowDraws, integers


@dataclass(frozen=True)
class PrivateDescent:
    """How the private steps of a diffusion model are taken.

    Attributes
    ----------
    multiplicity : int
        K, the pairs of time step and noise over which an example's own loss is averaged before its gradient is clipped:
        that lowers the gradient's variance, and costs no privacy.
    examples : int
        How many there are as far as anybody may know, by which steps, rate and divisor go.
    sample : callable
        (step, rate) -> positions of a Poisson sample, int64 [m]; steps count from 0 over all epochs.
    rows : callable
        (step, positions) -> the draws of these examples, each example's its own.
    gaussian : callable
        step -> the mechanism.
    """

    multiplicity: int
    examples: int
    sample: Callable[[int, float], Tensor]
    rows: Callable[[int, Tensor], RowDraws]
    gaussian: Callable[[int], Gaussian]

    def slopes(
        self,
        model: nn.Module,
        schedule: Schedule,
        images: Tensor,
        labels: Tensor,
        *,
        step: int,
        expected: float,
        rows: RowDraws,
        precision: torch.dtype = torch.float32,
    ) -> dict[str, Tensor]:
        """Return the noisy mean gradient of a sample by the parameters' names.

        Parameters
        ----------
        model : nn.Module
            eps(x_t, t, y); nothing is dropped in it.
        schedule : Schedule
            On the images' device.
        images, labels : Tensor
            The sample, float [m, C, H, W] in [-1, 1] and int64 [m]; m may be 0.
        step : int
            From 0 on.
        expected : float
            The divisor.
        rows : RowDraws
            The source of the images' time steps and of the noise in them.
        precision : torch.dtype
            torch.bfloat16 runs the forward pass under autocast. Clip, sum and noise are of the parameters' own type.
        """
        several, device = self.multiplicity, images.device
        t = integers(rows, schedule.steps, several) + 1
        eps = rows.normal(several, *images.shape[1:]).to(images.dtype)

        def loss(net: nn.Module, x: Tensor, y: Tensor, at: Tensor, noise: Tensor) -> Tensor:
            copies, classes = x.expand_as(noise[0]), y.expand_as(at[0])
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == torch.bfloat16):
                return denoising_losses(net, schedule, copies, classes, at[0], noise[0]).mean()

        gaussian = self.gaussian(step)
        sums = clipped_sum(model, loss, (images, labels, t, eps), gaussian)
        return noisy_mean(sums, gaussian, expected)


def steps_of(epochs: int, examples: int, batch: int) -> int:
    """Return in how many steps as many examples are drawn, in the mean, as ``epochs`` passes have: ceil(epochs / q)."""
    return math.ceil(epochs * examples / min(batch, examples))
