"""DP-SGD's gradient (Abadi et al., 2016, Algorithm 1): of each example alone, none longer than C, summed, with noise.

The divisor is the expected size of a Poisson sample, never the size of the one that was drawn, so that adding an
example to a data set, or taking one away, moves the sum by no more than C, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from synth.private_release import MOST_ROWS, Gaussian

Objective = Callable[..., Tensor]
"""(model, *tensors of a batch) -> the mean loss over the batch, a scalar."""

#: numbers in the gradients that are held at a time, 128 MiB of float32
_HELD = 1 << 25


class _Bound(nn.Module):
    """An objective as a module around its model: what a functional call can put other parameters into."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model = model
        self.objective = objective

    def forward(self, *batch: Tensor) -> Tensor:
        return self.objective(self.model, *batch)


def example_gradients(
    model: nn.Module, objective: Objective, batch: Sequence[Tensor]
) -> dict[str, Tensor]:
    """Return the objective's gradient of every example by itself, as if it were the whole batch.

    Parameters
    ----------
    model : nn.Module
        Whose parameters the gradients are of, those that require one. It must treat examples alone, and change none
        of its buffers.
    objective : callable
        Called as it is for a batch, with batches of one. Layers such as dropout draw for each example, under
        `synth.row_draws.LayerDraws` of its own; what it draws of a generator itself should come in ``batch``.
    batch : sequence of Tensor
        What the objective takes, each [n, ...] with n at least 1.

    Returns
    -------
    dict of str to Tensor
        By the parameters' names, each [n, *shape].
    """
    bound = _Bound(model, objective)
    parameters = {n: p.detach() for n, p in bound.named_parameters() if p.requires_grad}

    def loss(given: dict[str, Tensor], *example: Tensor) -> Tensor:
        value: Tensor = functional_call(bound, given, tuple(part[None] for part in example))
        return value

    dims = (None, *(0 for _ in batch))
    each = vmap(grad(loss), in_dims=dims, randomness="different")
    slopes: dict[str, Tensor] = each(parameters, *batch)
    return {name.removeprefix("model."): slope for name, slope in slopes.items()}


def clipped_sum(
    model: nn.Module,
    objective: Objective,
    batch: Sequence[Tensor],
    gaussian: Gaussian,
    chunk: int = 0,
    drawing: Callable[[slice], AbstractContextManager[None]] | None = None,
) -> dict[str, Tensor]:
    """Return the sum of the examples' gradients, each scaled down to a length of C over all parameters if longer.

    An example whose gradient is not finite contributes nothing. Lengths are of float64, whatever autocast is on, and
    sums are exact (`synth.private_release` says why).

    Parameters
    ----------
    model, objective, batch
        As `example_gradients` takes them; n may be 0 here.
    gaussian : Gaussian
        The mechanism that is to release the sum: it has C and the grid.
    chunk : int
        How many examples' gradients are held at a time; 0: as many as come to 128 MiB of float32, at least one.
    drawing : callable, optional
        rows of the batch -> what is entered while their gradients are computed, for layers that draw.

    Returns
    -------
    dict of str to Tensor
        By the parameters' names, each of the parameter's shape: steps of the mechanism's grid, in its ``dtype``; zeros
        where there is no example.
    """
    sums = {
        name: torch.zeros_like(p, dtype=gaussian.dtype, requires_grad=False)
        for name, p in model.named_parameters()
        if p.requires_grad
    }
    numbers = max(1, sum(map(torch.numel, sums.values())))
    size = chunk or min(MOST_ROWS, max(1, _HELD // numbers))
    for start in range(0, len(batch[0]), size):
        rows = slice(start, start + size)
        part = [tensor[rows] for tensor in batch]
        with nullcontext() if drawing is None else drawing(rows):
            slopes = example_gradients(model, objective, part)
        with torch.autocast(part[0].device.type, enabled=False):
            factors = gaussian.factors(slopes.values())
            for name, slope in slopes.items():
                sums[name] += gaussian.steps(slope, factors).sum(0).to(gaussian.dtype)
    return sums


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
