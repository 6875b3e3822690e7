"""Denoising diffusion (DDPM, Ho et al. 2020): noise schedules, the forward process and the simple loss.

Time steps go from 1 to T; x_0 is the image, x_T all but pure noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
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
        """
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
        Of the type of ``x0`` [n], for any precision of the model.
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


# ---- diffusion samplers --------------------------------------------------------------------------
# Images out of a diffusion model: ancestral sampling, DDIM and DPM-Solver++(2M), over any time steps.

SAMPLERS = {"ancestral": 250, "ddim": 100, "second-order": 25}
"""The samplers, and how many steps each takes by default."""


@torch.no_grad()
def sample(
    model: Denoiser,
    schedule: Schedule,
    labels: Tensor,
    shape: tuple[int, int, int],
    generator: torch.Generator,
    *,
    sampler: str = "ancestral",
    steps: int | None = None,
    batch: int = 256,
    clip: bool = True,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return an image of each of the requested classes, each from its own start noise.

    "ancestral" is Ho et al.'s Algorithm 2 (with T steps, or respaced to fewer as by Nichol and Dhariwal
    2021), "ddim" its deterministic twin (Song et al. 2021, eta = 0), "second-order" the multistep solver
    DPM-Solver++(2M) (Lu et al. 2022), made for 20 to 50 steps. A step asks the model once.

    The images go through all steps together and through the model in chunks. So every draw is one for
    all images, and the chunks' size changes no number but by the model's own rounding.

    Parameters
    ----------
    model : Denoiser
        Called in inference mode, and under autocast if the caller is.
    schedule : Schedule
        The one that the model was trained with, on any device.
    labels : Tensor
        Classes, int64 [n]; their device is the images', and must be the model's and the generator's.
    shape : tuple of int
        An image's (C, H, W).
    generator : torch.Generator
        The source of the start noise, then of each ancestral step's.
    sampler : str
        One of `SAMPLERS`.
    steps : int, optional
        From 1 to T; by default what `SAMPLERS` says, or T if that is less. Ancestral steps are spread
        evenly over the time, the others quadratically, close together where little noise is left (Song et
        al. 2021, section D.2): on a mixture of Gaussians DDIM's error at 100 steps is then 15 to 45 % less,
        and of the second-order solver's at 25 a fourteenth or less is left.
    batch : int
        Images in a chunk at most.
    clip : bool
        Whether each step's estimate of x_0 is clipped to [-1, 1]. Close to pure noise that estimate is
        the model's error times 1/sqrt(alpha_bar), with the cosine schedule 20,000 times: images need it.
    dtype : torch.dtype
        The images' type.

    Returns
    -------
    Tensor
        Images, [n, C, H, W] of type ``dtype``; within [-1, 1] if ``clip``.
    """
    steps = min(SAMPLERS[sampler], schedule.steps) if steps is None else steps
    path = _path(schedule, steps, power=1 if sampler == "ancestral" else 2)

    def denoised(x: Tensor, now: _Time) -> Tensor:
        """Return x_0 as the model sees it in x_t, (x_t - sqrt(1 - alpha_bar_t) eps) / sqrt(alpha_bar_t)."""
        t = torch.full_like(labels, now.t)
        parts = (torch.split(part, batch) for part in (x, t, labels))
        with torch.inference_mode():
            chunks = [model(*chunk) for chunk in zip(*parts, strict=True)]
            eps = torch.cat(chunks).to(x.dtype)
        x0 = (x - now.noise * eps) / now.signal
        return x0.clamp_(-1, 1) if clip else x0

    draw = partial(
        torch.randn,
        (len(labels), *shape),
        generator=generator,
        device=labels.device,
        dtype=dtype,
    )
    x: Tensor = draw()
    if sampler == "second-order":
        return _second_order(denoised, path, x)
    for now, after in path:
        x0 = denoised(x, now)
        eps = (x - now.signal * x0) / now.noise
        if sampler == "ancestral" and after.noise:
            # q(x_s | x_t, x_0) of Ho et al. 2020, Eq. 7, over a step of any length, its mean written with eps
            deviation = after.noise / now.noise * math.sqrt(1 - (now.signal / after.signal) ** 2)
            x = after.signal * x0 + math.sqrt(after.noise**2 - deviation**2) * eps
            x.add_(draw(), alpha=deviation)
        else:
            x = after.signal * x0 + after.noise * eps
    return x


def labels_like(labels: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Return ``n`` labels with the class frequencies f_c of the labels given, int64 [n], ascending.

    By systematic sampling: one random offset for all classes rounds each n f_c up or down, so the expected
    counts are n f_c exactly, and none is off by 1 or more. With independent draws a class's count would be off by
    sqrt(n f_c), which for the rare classes of a skewed site is most of it.

    Parameters
    ----------
    labels : Tensor
        Int64 [N], at least one.
    n : int
        How many are wanted.
    generator : torch.Generator
        The source of the offset, on the labels' device.
    """
    classes, counts = torch.unique(labels, return_counts=True)
    offset = torch.randint(len(labels), (), generator=generator, device=labels.device)
    ends = (n * counts.cumsum(0) + offset) // len(labels)
    drawn: Tensor = classes.repeat_interleave(ends.diff(prepend=ends.new_zeros(1)))
    return drawn


@dataclass(frozen=True)
class _Time:
    """A time step t: sqrt(alpha_bar_t) and sqrt(1 - alpha_bar_t)."""

    t: int
    signal: float
    noise: float


def _path(schedule: Schedule, steps: int, power: int) -> list[tuple[_Time, _Time]]:
    """Return the pairs (t, next t) from T to 0 over ``steps`` steps, those above 0 as powers of an even grid."""
    grid = torch.linspace(1, 0, steps, dtype=torch.float64) ** power
    # So many steps are still to come: without that, a fine grid would repeat its last steps.
    left = torch.arange(steps, 0, -1)
    kept = (1 + (schedule.steps - 1) * grid).round().long().maximum(left)
    shares = schedule.alpha_bar.tolist()
    times = [_Time(t, math.sqrt(shares[t]), math.sqrt(1 - shares[t])) for t in [*kept.tolist(), 0]]
    return list(pairwise(times))


def _second_order(
    denoised: Callable[[Tensor, _Time], Tensor], path: list[tuple[_Time, _Time]], x: Tensor
) -> Tensor:
    """Return x_0 by DPM-Solver++(2M) (Lu et al. 2022, Algorithm 2).

    The step from t to s takes h = lambda_s - lambda_t, lambda = log(signal / noise), and extrapolates the
    estimate of x_0 from the last two to the step's middle. The first step has one estimate only, and the
    last, to no noise at all, is that estimate.
    """
    before: tuple[Tensor, float] | None = None
    for now, after in path:
        x0 = denoised(x, now)
        if not after.noise:
            return x0
        h = math.log(after.signal / after.noise) - math.log(now.signal / now.noise)
        middle = x0 if before is None else x0 + (x0 - before[0]) * (h / (2 * before[1]))
        x = after.noise / now.noise * x - after.signal * math.expm1(-h) * middle
        before = x0, h
    raise AssertionError("a path ends without noise")
