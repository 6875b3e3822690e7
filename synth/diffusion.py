"""Denoising diffusion (DDPM, Ho et al. 2020): noise schedules, the forward process and the simple loss.

Time steps go from 1 to T; x_0 is the image, x_T all but pure noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

_FIRST_BETA, _LAST_BETA, _THEIR_STEPS = 1e-4, 0.02, 1000
_COSINE_OFFSET, _LARGEST_BETA = 0.008, 0.999


class Denoiser(Protocol):
    """eps(x_t, t, y): the noise in images, a `synth.unet.UNet` or a closed form."""

    def __call__(self, x: Tensor, t: Tensor, y: Tensor, /) -> Tensor:
        """Return eps [n, C, H, W] for x_t [n, C, H, W], its time steps and classes, int64 [n]."""
        ...


@dataclass(frozen=True)
class Schedule:
    """How much of an image is left at each time step.

    Attributes
    ----------
    alpha_bar : Tensor
        The share of the image's variance left, float64 [T + 1]: 1 at 0, then falling. Beta and all
        else follows from it.
    """

    alpha_bar: Tensor

    @classmethod
    def linear(cls, steps: int = _THEIR_STEPS) -> Schedule:
        """Return Ho et al.'s schedule: beta_t rises linearly, from 1e-4 to 0.02 at T = 1000.

        With another T both ends are multiplied by 1000 / T, so that as much noise is added in all.

        Raises
        ------
        ValueError
            ``steps`` is so small that beta_T would reach 1.
        """
        scale = _THEIR_STEPS / max(steps, 1)
        if scale * _LAST_BETA >= 1:
            fewest = int(_THEIR_STEPS * _LAST_BETA) + 1
            raise ValueError(f"a linear schedule needs at least {fewest} steps, not {steps}")
        betas = torch.linspace(scale * _FIRST_BETA, scale * _LAST_BETA, steps, dtype=torch.float64)
        return cls._of(betas)

    @classmethod
    def cosine(cls, steps: int = _THEIR_STEPS) -> Schedule:
        """Return Nichol and Dhariwal's schedule (2021, Eq. 17), which spares small images their last steps.

        alpha_bar_t = f(t) / f(0) with f(t) = cos^2(pi/2 (t/T + s) / (1 + s)), s = 0.008, and no beta_t above 0.999.

        Raises
        ------
        ValueError
            There is no step.
        """
        if steps < 1:
            raise ValueError(f"a schedule needs at least 1 step, not {steps}")
        t = torch.arange(steps + 1, dtype=torch.float64) / steps
        f = torch.cos(math.pi / 2 * (t + _COSINE_OFFSET) / (1 + _COSINE_OFFSET)).square()
        return cls._of((1 - f[1:] / f[:-1]).clamp(max=_LARGEST_BETA))

    @classmethod
    def _of(cls, betas: Tensor) -> Schedule:
        return cls(torch.cat((betas.new_ones(1), (1 - betas).cumprod(0))))

    @property
    def steps(self) -> int:
        """T."""
        return len(self.alpha_bar) - 1

    def to(self, device: torch.device) -> Schedule:
        """Return the schedule on ``device``."""
        return Schedule(self.alpha_bar.to(device))


def noised(schedule: Schedule, x0: Tensor, t: Tensor, eps: Tensor) -> Tensor:
    """Return x_t = sqrt(alpha_bar_t) x_0 + sqrt(1 - alpha_bar_t) eps (Ho et al. 2020, Eq. 4).

    Parameters
    ----------
    schedule : Schedule
        On the images' device.
    x0, eps : Tensor
        Images and standard normal noise, float [n, C, H, W].
    t : Tensor
        Time steps from 0 (which adds no noise) to T, int64 [n].
    """
    alpha_bar = schedule.alpha_bar[t].view(-1, *[1] * (x0.ndim - 1))
    return alpha_bar.sqrt().to(x0.dtype) * x0 + (1 - alpha_bar).sqrt().to(x0.dtype) * eps


def denoising_losses(
    model: Denoiser, schedule: Schedule, x0: Tensor, labels: Tensor, t: Tensor, eps: Tensor
) -> Tensor:
    """Return each example's ||eps - eps(x_t, t, y)||^2 / (CHW) (the simple loss, Ho et al. 2020, Eq. 14).

    Every draw is the caller's, so that DP-SGD can average several (t, eps) of an example before it clips
    that example's gradient (noise multiplicity, Dockhorn et al. 2022).

    Parameters
    ----------
    schedule : Schedule
        On the images' device.
    labels, t : Tensor
        The classes and the time steps, 1 to T, int64 [n].

    Returns
    -------
    Tensor
        Of the type of ``x0`` [n], whatever the model's precision is.
    """
    error = eps - model(noised(schedule, x0, t, eps), t, labels)
    return error.square().flatten(1).mean(1)


def denoising_loss(
    model: Denoiser, schedule: Schedule, x0: Tensor, labels: Tensor, generator: torch.Generator
) -> Tensor:
    """Return the mean of `denoising_losses`, a time step from 1 to T and noise drawn for each image.

    Parameters
    ----------
    x0 : Tensor
        Images, float [n, C, H, W], of values in [-1, 1].
    labels : Tensor
        Their classes, int64 [n].
    generator : torch.Generator
        The source of the time steps, uniform, and then of the noise.
    """
    t = torch.randint(1, schedule.steps + 1, (len(x0),), generator=generator, device=x0.device)
    eps = torch.randn(x0.shape, generator=generator, device=x0.device, dtype=x0.dtype)
    return denoising_losses(model, schedule, x0, labels, t, eps).mean()
