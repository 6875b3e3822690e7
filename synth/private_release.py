"""Sums of clipped contributions with Gaussian noise: the one place where noise that privacy rests on is added.

This module uses nothing of an example but its clipped contribution: the divisor is the expected size
of a Poisson sample, and an example whose features are no numbers contributes nothing.

**The grid.** In floating point the last bits of a sum, and of noise, reveal what was added in which order. So a clipped
contribution is cut towards 0 to steps of a grid, which makes it no longer; steps are added as integers, exactly
and in any order; and noise is rounded to the same grid. What leaves is then a rounding of the exact sum with
continuous noise: the Gaussian mechanism with sensitivity C, and post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.linalg import vector_norm

#: Pixels of the images that one vectorised backward pass goes through
_CHUNK_PIXELS = {"cpu": 1 << 17}
_CHUNK_PIXELS_ELSEWHERE = 1 << 22

FINE_ROWS = 1 << 7
"""Products that may be added in float64 before the sum goes into an integer, exactly."""

#: steps of a unit vector of inputs: half of these bits
_UNIT = 2.0**23

#: by which C is less in finer steps: more than float64 rounds off a length, of up to 2^20 squares
_ROUNDED = 2.0**-30

#: numbers that are given noise at a time
_PIECE = 1 << 16

#: how much finer than the noise the grid is, at least
_FINER = 2.0**-24


def clip_factors(parts: Iterable[Tensor], clip: float) -> Tensor:
    """Return the factors by which rows are scaled so that none is longer than ``clip``, float64 [n].

    Lengths are of float64: in float32 the square of 1e-25 is 0, and a row of such numbers passes for one of no length.
    A row is scaled by 0 where its length is not finite, or is 0.

    Parameters
    ----------
    parts : iterable of Tensor
        Float [n, ...] each; a row of all of them together is a contribution.
    clip : float
        C, above 0.
    """
    pieces = [_pieces(part.flatten(1), 0) for part in parts]
    each = [torch.cat([vector_norm(p, dim=1, dtype=torch.float64) for p in of]) for of in pieces]
    lengths = vector_norm(torch.stack(each), dim=0)
    factors = (clip / lengths).clamp_(max=1)
    kept: Tensor = factors.where(lengths.isfinite() & (lengths > 0), 0)
    return kept


def _pieces(rows: Tensor, dim: int) -> tuple[Tensor, ...]:
    """Split [n, d] into pieces that stay in a CPU's cache in float64; not on a GPU, where small pieces are slow."""
    most = 1 << 19 if rows.is_cpu else rows.numel()
    return torch.split(rows, max(1, most * rows.shape[dim] // max(1, rows.numel())), dim)


def grid_of(noise_multiplier: float, clip: float) -> float:
    """Return the step of the grid of a mechanism; see `Gaussian.grid`."""
    if not noise_multiplier:
        return 1.0
    return 2.0 ** math.floor(math.log2(noise_multiplier * clip * _FINER))


@dataclass(frozen=True)
class Gaussian:
    """The Gaussian mechanism on a sum of contributions.

    Attributes
    ----------
    noise_multiplier
        sigma, the noise's standard deviation over ``clip``.
    clip
        C, the longest that a contribution may be.
    normal
        shape -> standard normal noise of that shape, new each time.
    finer
        Sums are counted in steps of the grid's 2^-finer. Noise is added in these steps, and the total is rounded to
        the grid, in integers: still a rounding of the exact sum with continuous noise, of which the same leaves.
    """

    noise_multiplier: float
    clip: float
    normal: Callable[[Sequence[int]], Tensor]
    finer: int = 0

    @property
    def grid(self) -> float:
        """The grid's step: the largest power of two up to sigma C 2^-24; 1 without noise, where nothing is cut."""
        return grid_of(self.noise_multiplier, self.clip)

    @property
    def step(self) -> float:
        """The unit of sums: the grid's step, or a finer one."""
        return self.grid * 2.0**-self.finer

    @property
    def deviation(self) -> float:
        """The noise's standard deviation in steps."""
        return self.noise_multiplier * self.clip / self.step

    @property
    def dtype(self) -> torch.dtype:
        """The type in which steps are added: int64, or float64 without noise."""
        return torch.int64 if self.noise_multiplier else torch.float64

    def factors(self, parts: Iterable[Tensor]) -> Tensor:
        """Return the factors by which contributions are scaled; see `clip_factors`."""
        return clip_factors(parts, self.clip * (1 - _ROUNDED * bool(self.finer)))

    def steps(self, part: Tensor, factors: Tensor) -> Tensor:
        """Return rows times their factors in steps, cut towards 0 to integers: [n, ...] of the type of sums.

        Where a factor is 0 the row contributes nothing, also if it is not finite.
        """
        by_row = (-1, *[1] * (part.ndim - 1))
        scaled = part.to(torch.float64, copy=True).mul_((factors / self.step).view(by_row))
        if not factors.all():  # 0 times what is no number would be none
            scaled.masked_fill_((factors == 0).view(by_row), 0)
        return scaled.to(self.dtype)

    def summed(self, part: Tensor | Products, factors: Tensor) -> Tensor:
        """Return the sum of the steps of rows, of which there is at least one: of a row's shape."""
        if isinstance(part, Products):
            return part.summed(factors, self)
        sums = [self.steps(piece, factors).sum(0) for piece in _pieces(part.flatten(1), 1)]
        return torch.cat(sums).view(part.shape[1:])

    def values(self, steps: Tensor) -> Tensor:
        """Return steps as numbers, float64."""
        return steps.double() * self.step

    def released(self, sums: Tensor) -> Tensor:
        """Return sums of steps, of any shape, with noise: numbers of the grid, float64."""
        if not self.noise_multiplier:
            return self.values(sums)
        found = torch.empty(sums.shape, dtype=torch.float64, device=sums.device)
        # In pieces that stay in the cache: a pass over millions of numbers costs as much as their noise.
        pieces = (torch.split(each, _PIECE) for each in (sums.flatten(), found.view(-1)))
        for steps, into in zip(*pieces, strict=True):
            noise = self.normal((len(steps),)).to(sums.device, torch.float64) * self.deviation
            total = noise.round_().to(torch.int64).add_(steps)
            if self.finer:
                total = total.add_(1 << (self.finer - 1)) >> self.finer
            into.copy_(total).mul_(self.grid)
        return found

    def share(self, sums: Tensor, of: int) -> Tensor:
        """Return sums of steps, int64 [n], with one of so many equal shares of the noise, in integer steps.

        This is the form for a secret sum. A share is Skellam noise, the difference of two Poisson numbers: shares add
        up exactly, to Skellam noise of the variance of all, and in the sum nothing is rounded.
        """
        mean = float(math.ceil(self.deviation**2 / (2 * of)))
        drawn = (self._poisson(mean, len(sums)) for _ in range(2))
        return sums + next(drawn) - next(drawn)

    def _poisson(self, mean: float, count: int) -> Tensor:
        """Return Poisson numbers of a large mean less that mean, rounded; by Hörmann's rejection (PTRS, 1993).

        Probabilities are of float64, by Stirling's series around the mean, where they keep nine digits.
        """
        if mean < 1000:
            raise ValueError(f"a mean of {mean:.3g}, where Stirling's series is not exact enough")
        b = 0.931 + 2.53 * math.sqrt(mean)
        a, inverse = 0.02483 * b - 0.059, 1.1239 + 1.1328 / (b - 3.4)
        found, left = torch.empty(count, dtype=torch.int64), torch.arange(count)
        while len(left):
            u, v = (torch.special.ndtr(self.normal((len(left),)).cpu().double()) for _ in range(2))
            u = u - 0.5
            us = 0.5 - u.abs()
            x = ((2 * a / us + b) * u + 0.43).floor()  # the number less the mean, an integer
            off = x / mean
            stirling = mean * ((1 + off) * off.log1p() - off) + 1 / (12 * (mean + x))
            log_chance = -stirling - 0.5 * (2 * math.pi * (mean + x)).log()
            good = (v * inverse / (a / us**2 + b)).log() <= log_chance
            good &= (us > 0) & (x > -mean)
            found[left[good]] = x[good].to(torch.int64)
            left = left[~good]
        return found


@dataclass(frozen=True)
class Contributions:
    """The features of a batch of real examples, one row each, of no gradient.

    Attributes
    ----------
    rows
        [b, d]; b may be 0.
    ranks
        Which of the classes each row is of, int64 [b], ascending.
    classes
        How many classes there are.
    """

    rows: Tensor
    ranks: Tensor
    classes: int


def means_of_equal_classes(rows: Tensor, classes: int) -> Tensor:
    """Return the means [C, d] of rows [C m, d], m of each class one after the other."""
    return rows.view(classes, -1, rows.shape[1]).mean(1)


def noisy_means(real: Contributions, expected: Tensor, gaussian: Gaussian) -> Tensor:
    """Return the class means of clipped features with noise, [C, d]: the mechanism ``feature``.

    Parameters
    ----------
    real
        The features h and z side by side, of a Poisson sample.
    expected
        The expected sizes of its classes, [C].
    """
    steps = gaussian.steps(real.rows, gaussian.factors([real.rows]))
    sums = steps.new_zeros(real.classes, steps.shape[1]).index_add_(0, real.ranks, steps)
    means = gaussian.released(sums) / expected[:, None]
    return means.to(real.rows.dtype)


def noisy_gradients(
    embed: Callable[[Tensor], Tensor],
    real: Contributions,
    images: Tensor,
    expected: Tensor,
    gaussian: Gaussian,
) -> Tensor:
    """Return the gradient with respect to the images, clipped by example, with noise: ``gradient``.

    The gradient of Eq. 9 is a mean of contributions g(x_i) = J^T (hbar(S) - h(x_i)) with J twice the
    Jacobian of hbar(S), and the same for z: a vector-Jacobian product each. (The paper's Eq. 20 lacks the 2.)

    Parameters
    ----------
    embed
        Images -> features h and z side by side, differentiable, each image's own.
    real
        The features of a Poisson sample.
    images
        The synthetic images [C m, ...], m of each class one after the other.
    expected
        The expected sizes of the sample's classes, [C].

    Returns
    -------
    Of the shape of ``images``.
    """
    with torch.no_grad():
        gaps = 2 * (means_of_equal_classes(embed(images), real.classes)[real.ranks] - real.rows)
    by_class = images.detach().view(real.classes, -1, *images.shape[1:])
    sums = images.new_zeros(real.classes, by_class[0].numel(), dtype=gaussian.dtype)
    most = _CHUNK_PIXELS.get(images.device.type, _CHUNK_PIXELS_ELSEWHERE)
    size = max(1, most // (by_class.shape[1] * images.shape[-2] * images.shape[-1]))
    for rows, ranks in zip(torch.split(gaps, size), torch.split(real.ranks, size), strict=True):
        if not len(rows):
            continue
        # Each example has its class's images to itself, so that one backward pass gives all products of a chunk.
        copies = by_class[ranks].flatten(0, 1).requires_grad_()
        means = means_of_equal_classes(embed(copies), len(rows))
        # J^T v by a scalar: given v, torch.autograd imports sympy first, which takes seconds.
        (product,) = torch.autograd.grad((means * rows).sum(), copies)
        own = product.view(len(rows), -1)
        sums.index_add_(0, ranks, gaussian.steps(own, gaussian.factors([own])))
    step = gaussian.released(sums) / expected[:, None]
    return step.to(images.dtype).view_as(images)


# ---- private gradients ---------------------------------------------------------------------------
# DP-SGD's gradient (Abadi et al., 2016, Algorithm 1): of each example alone, none longer than C, summed, with noise.
#
# The divisor is the expected size of a Poisson sample, never the size of the one that was drawn, so that adding an
# example to a data set, or taking one away, moves the sum by no more than C, and nothing else.

Objective = Callable[..., Tensor]
"""(model, *tensors of a batch) -> the mean loss over the batch, a scalar."""

#: numbers in the gradients that are held at a time, 128 MiB of float32
_HELD = 1 << 25


class Bound(nn.Module):
    """An objective as a module around its model: what a functional call can put other parameters into."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model = model
        self.objective = objective

    def forward(self, *batch: Tensor) -> Tensor:
        """Return the objective's value."""
        return self.objective(self.model, *batch)


def example_gradients(
    model: nn.Module, objective: Objective, batch: Sequence[Tensor]
) -> dict[str, Tensor]:
    """Return the objective's gradient of every example by itself, as if it were the complete batch.

    Parameters
    ----------
    model : nn.Module
        Whose parameters the gradients are of, those that require one. It must treat examples alone, and change none
        of its buffers.
    objective : callable
        Called as for a batch, with batches of one. Layers such as dropout draw for each example, under
        `synth.row_draws.LayerDraws` of its own; what it draws from a generator itself should come in ``batch``.
    batch : sequence of Tensor
        What the objective takes, each [n, ...] with n at least 1.

    Returns
    -------
    dict of str to Tensor
        By the parameters' names, each [n, *shape].
    """
    bound = Bound(model, objective)
    parameters = {n: p.detach() for n, p in bound.named_parameters() if p.requires_grad}

    def loss(given: dict[str, Tensor], *example: Tensor) -> Tensor:
        value: Tensor = functional_call(bound, given, tuple(part[None] for part in example))
        return value

    dims = (None, *(0 for _ in batch))
    each = vmap(grad(loss), in_dims=dims, randomness="different")
    slopes: dict[str, Tensor] = each(parameters, *batch)
    return {name.removeprefix("model."): slope for name, slope in slopes.items()}


@dataclass(frozen=True)
class Products:
    """The gradients b a^T of examples.

    Attributes
    ----------
    slopes, inputs : Tensor
        b [n, out] and a [n, in].
    """

    slopes: Tensor
    inputs: Tensor

    def lengths(self) -> Tensor:
        """Return the gradients' lengths, float64 [n, 1]."""
        b, a = (vector_norm(p, dim=1, dtype=torch.float64) for p in (self.slopes, self.inputs))
        lengths: Tensor = (b * a)[:, None]
        return lengths

    def summed(self, factors: Tensor, gaussian: Gaussian) -> Tensor:
        """Return the sum of the gradients times ``factors`` [n] in the mechanism's steps, [out, in]."""
        length = vector_norm(self.inputs, dim=1, dtype=torch.float64)
        by_b = (factors * length / _UNIT).where(factors > 0, 0)
        by_a = (_UNIT * gaussian.step / length).where(by_b > 0, 0)
        b, a = gaussian.steps(self.slopes, by_b), gaussian.steps(self.inputs, by_a)
        total: Tensor = b.double().T @ a.double()
        return total.to(gaussian.dtype)


def clipped_sum(
    model: nn.Module,
    objective: Objective,
    batch: Sequence[Tensor],
    gaussian: Gaussian,
    chunk: int = 0,
    drawing: Callable[[slice], AbstractContextManager[None]] | None = None,
    gradients: Callable[..., Mapping[str, Tensor | Products]] = example_gradients,
) -> dict[str, Tensor]:
    """Return the sum of the examples' gradients, each scaled down to a length of C over all parameters if longer.

    An example whose gradient is not finite contributes nothing. Lengths are of float64, with any autocast, and
    sums are exact (`synth.private_release` says why).

    Parameters
    ----------
    model, objective, batch
        As `example_gradients` takes them; n may be 0.
    gaussian : Gaussian
        The mechanism that is to release the sum: it has C and the grid.
    chunk : int
        How many examples' gradients are held at a time; 0: as many as come to 32 MiB of float32, or 32 if those come
        to no more than 128 MiB; on a GPU, as many as come to a quarter of what it has free; at least one.
    drawing : callable, optional
        rows of the batch -> what is entered while their gradients are computed, for layers that draw.
    gradients : callable
        Returns those of examples, as `example_gradients` does, or as products.

    Returns
    -------
    dict of str to Tensor
        By the parameters' names, each of the parameter's shape: the mechanism's steps, in its ``dtype``; zeros
        if there is no example.
    """
    numbers = max(1, sum(p.numel() for p in model.parameters() if p.requires_grad))
    size = chunk or _examples_held(numbers, batch[0].device)
    sums = {
        name: torch.zeros_like(p, dtype=gaussian.dtype, requires_grad=False)
        for name, p in model.named_parameters()
        if p.requires_grad
    }
    for start in range(0, len(batch[0]), size):
        rows = slice(start, start + size)
        part = [tensor[rows] for tensor in batch]
        with nullcontext() if drawing is None else drawing(rows):
            slopes = gradients(model, objective, part)
        with torch.autocast(part[0].device.type, enabled=False):
            parts = [g.lengths() if isinstance(g, Products) else g for g in slopes.values()]
            factors = gaussian.factors(parts)
            for name, slope in slopes.items():
                sums[name] += gaussian.summed(slope, factors)
    return sums


def _examples_held(numbers: int, device: torch.device) -> int:
    """Return how many examples, with gradients of so many numbers, are taken at a time: more are hardly faster."""
    if device.type == "cuda":
        return max(1, _HELD // numbers, torch.cuda.mem_get_info(device)[0] // 16 // numbers)
    return max(1, _HELD // 4 // numbers, min(32, _HELD // numbers))


def noisy_mean(sums: dict[str, Tensor], gaussian: Gaussian, expected: float) -> dict[str, Tensor]:
    """Return (sum + N(0, sigma^2 C^2)) over the expected size of the batch, float32 by the parameters' names.

    Parameters
    ----------
    sums : dict of str to Tensor
        What `clipped_sum` returned for the mechanism.
    gaussian : Gaussian
        Releases all of them as one.
    expected : float
        The sampling rate times the number of examples that it is planned with; above 0.
    """
    flat = torch.cat([total.flatten() for total in sums.values()])
    means = (gaussian.released(flat) / expected).float()
    parts = torch.split(means, [total.numel() for total in sums.values()])
    return {
        name: part.view_as(total) for (name, total), part in zip(sums.items(), parts, strict=True)
    }
