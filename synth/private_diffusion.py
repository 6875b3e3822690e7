"""DP-SGD for a diffusion model (Dockhorn et al., 2023): one gradient an example, of several of its noised versions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from synth.diffusion import Schedule, denoising_losses
from synth.private_gradients import clipped_sum, noisy_mean


@dataclass(frozen=True)
class PrivateDescent:
    """How the private steps of a diffusion model are taken.

    Attributes
    ----------
    clip : float
        C, the longest that an example's gradient may be.
    noise_multiplier : float
        sigma; the noise on the sum has a standard deviation of sigma C.
    multiplicity : int
        K, the pairs of time step and noise over which an example's own loss is averaged before its gradient is clipped:
        that lowers the gradient's variance, and costs no privacy.
    sample : callable
        (step, examples, rate) -> positions of a Poisson sample, int64 [m]; steps count from 0 over all epochs.
    normal : callable
        (step, count) -> so many standard normal numbers.
    """

    clip: float
    noise_multiplier: float
    multiplicity: int
    sample: Callable[[int, int, float], Tensor]
    normal: Callable[[int, int], Tensor]

    def slopes(
        self,
        model: nn.Module,
        schedule: Schedule,
        images: Tensor,
        labels: Tensor,
        *,
        step: int,
        expected: float,
        draw: torch.Generator,
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
        draw : torch.Generator
            The source of time steps and of the noise in images, on which no privacy rests.
        precision : torch.dtype
            torch.bfloat16 runs the forward pass under autocast. Clip, sum and noise are of the parameters' own type.
        """
        shape, device = (len(images), self.multiplicity), images.device
        t = torch.randint(1, schedule.steps + 1, shape, generator=draw, device=device)
        eps = torch.randn((*shape, *images.shape[1:]), generator=draw, device=device)

        def loss(net: nn.Module, x: Tensor, y: Tensor, at: Tensor, noise: Tensor) -> Tensor:
            several, classes = x.expand_as(noise[0]), y.expand_as(at[0])
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == torch.bfloat16):
                return denoising_losses(net, schedule, several, classes, at[0], noise[0]).mean()

        return noisy_mean(
            clipped_sum(model, loss, (images, labels, t, eps), self.clip),
            clip=self.clip,
            noise_multiplier=self.noise_multiplier,
            expected=expected,
            normal=lambda count: self.normal(step, count),
        )


def steps_of(epochs: int, examples: int, batch: int) -> int:
    """Return in how many steps as many examples are drawn, in the mean, as ``epochs`` passes have: ceil(epochs / q)."""
    return math.ceil(epochs * examples / min(batch, examples))
