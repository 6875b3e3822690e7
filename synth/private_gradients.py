"""DP-SGD's gradient (Abadi et al., 2016, Algorithm 1): of each example alone, none longer than C, summed, with noise.

The divisor is the expected size of a Poisson sample, never the size of the one that was drawn, so that adding an
example to a data set, or taking one away, moves the sum by no more than C, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

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
        Called as it is for a batch, with batches of one. Layers such as dropout draw for each example anew; what it
        draws of a generator itself should come in ``batch``, drawn before.
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
    model: nn.Module, objective: Objective, batch: Sequence[Tensor], clip: float, chunk: int = 0
) -> dict[str, Tensor]:
    """Return the sum of the examples' gradients, each scaled down to a length of C over all parameters if longer.

    An example whose gradient is not finite contributes nothing. Lengths and sums are in the parameters' own type,
    whatever autocast is on: a long sum in bfloat16 is rounded by more than C, so that one example can move it by more.

    Parameters
    ----------
    model, objective, batch
        As `example_gradients` takes them; n may be 0 here.
    clip : float
        C, above 0; infinite for the plain sum.
    chunk : int
        How many examples' gradients are held at a time; 0: as many as come to 128 MiB of float32, at least one.

    Returns
    -------
    dict of str to Tensor
        By the parameters' names, each of the parameter's shape; zeros where there is no example.
    """
    sums = {
        name: torch.zeros_like(p, requires_grad=False)
        for name, p in model.named_parameters()
        if p.requires_grad
    }
    size = chunk or max(1, _HELD // max(1, sum(map(torch.numel, sums.values()))))
    for part in zip(*(torch.split(tensor, size) for tensor in batch), strict=True):
        if not len(part[0]):
            continue
        slopes = example_gradients(model, objective, part)
        with torch.autocast(part[0].device.type, enabled=False):
            _add_clipped(sums, slopes, clip)
    return sums


def _add_clipped(sums: dict[str, Tensor], slopes: dict[str, Tensor], clip: float) -> None:
    """Add what each example's gradient gives once it is clipped."""
    norms = torch.stack([slope.flatten(1).norm(dim=1) for slope in slopes.values()]).norm(dim=0)
    finite = norms.isfinite()
    if not finite.all():  # 0 times what is no number would be none
        norms = norms[finite]
        slopes = {name: slope[finite] for name, slope in slopes.items()}
    factors = (clip / norms).clamp(max=1)
    for name, slope in slopes.items():
        sums[name] += torch.tensordot(factors.to(slope.dtype), slope, dims=1)


def noisy_mean(
    sums: dict[str, Tensor],
    *,
    clip: float,
    noise_multiplier: float,
    expected: float,
    normal: Callable[[int], Tensor],
) -> dict[str, Tensor]:
    """Return (sum + N(0, sigma^2 C^2)) over the expected size of the batch.

    Parameters
    ----------
    sums : dict of str to Tensor
        What `clipped_sum` returned.
    clip : float
        C.
    noise_multiplier : float
        sigma; at 0 no noise is asked for.
    expected : float
        The sampling rate times the number of examples that it is reckoned with; above 0.
    normal : callable
        count -> so many standard normal numbers, [count], on the sums' device.

    Returns
    -------
    dict of str to Tensor
        Of the same names and shapes.
    """
    if noise_multiplier:
        sizes = [total.numel() for total in sums.values()]
        noise = torch.split(normal(sum(sizes)) * (noise_multiplier * clip), sizes)
        sums = {
            name: total + part.view_as(total).to(total.dtype)
            for (name, total), part in zip(sums.items(), noise, strict=True)
        }
    return {name: total / expected for name, total in sums.items()}
