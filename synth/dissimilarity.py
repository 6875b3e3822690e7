"""What Fedssyn's convergence rate rests on (Li et al., 2024, section 2): how far the sites' gradients differ.

At a model x, a site computes its part from its own examples; the server puts the parts together. The symbols are the
paper's: F(x, xi) is an example's loss, f(x, D_i) its mean over site i, f(x, D) the mean of that over the sites.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from synth.private_release import example_gradients

# Numbers in the gradients of one chunk: 64 MB of float32.
_VALUES = 1 << 24


@dataclass(frozen=True)
class SiteGradient:
    """A site's statistics of its data at x.

    Attributes
    ----------
    mean : Tensor
        grad f(x, D_i), float64 [d], in the order of the model's trainable parameters.
    noise : Tensor
        1/n_i sum_j ||grad F(x, xi_ij) - grad f(x, D_i)||^2, a float64 scalar.
    """

    mean: Tensor
    noise: Tensor


def site_gradient(
    model: nn.Module,
    criterion: Callable[[Tensor, Tensor], Tensor],
    inputs: Callable[[Tensor], Tensor],
    labels: Tensor,
    *,
    chunk: int = 0,
    before_chunk: Callable[[], None] | None = None,
) -> SiteGradient:
    """Return a site's mean gradient and its examples' mean squared distance from it (Assumptions 1 and 2).

    The gradients of ``chunk`` examples exist at a time. Chunks are put together by their means and the sums of
    squares around these: E||g||^2 - ||E g||^2 would lose all digits where the examples agree.

    Parameters
    ----------
    model : nn.Module
        x, in the mode to differentiate in; not changed. It must treat every example alone, so that batch norm belongs
        in eval mode, and dropout too.
    criterion : callable
        (outputs, targets) -> the mean loss of a batch.
    inputs : callable
        Gives the inputs, float [b, ...], for indices int64 [b].
    labels : Tensor
        The targets, [n_i, ...], on the device of the model.
    chunk : int
        Examples at a time; 0 for as many as 64 MB of gradients in float32 hold.
    before_chunk : callable, optional
        Called ahead of every chunk, such as one that raises when the time is over.

    Raises
    ------
    ValueError
        If there is no example, or nothing to differentiate by.
    """
    d = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if not len(labels) or not d:
        raise ValueError(f"{len(labels)} examples and {d} trainable parameters have no gradient")

    def loss(model: nn.Module, x: Tensor, targets: Tensor) -> Tensor:
        return criterion(model(x), targets)

    mean = torch.zeros(d, dtype=torch.float64, device=labels.device)
    squares, before = mean.new_zeros(()), 0
    positions = torch.arange(len(labels), device=labels.device)
    for at in torch.split(positions, chunk or max(1, _VALUES // d)):
        if before_chunk is not None:
            before_chunk()
        found = example_gradients(model, loss, (inputs(at), labels[at]))
        gradients = torch.cat([g.reshape(len(at), -1) for g in found.values()], 1)
        own = gradients.mean(0, dtype=torch.float64)
        n = before + len(at)
        squares += gradients.sub_(own.to(gradients.dtype)).square().sum(dtype=torch.float64)
        squares += (own - mean).square().sum() * (before * len(at) / n)
        mean += (own - mean) * (len(at) / n)
        before = n
    return SiteGradient(mean, squares / before)


def gradient_dissimilarity(means: Tensor) -> Tensor:
    """Return the scalar zeta^2 = 1/N sum_i ||grad f(x, D_i) - grad f(x, D)||^2 (Assumption 1).

    Parameters
    ----------
    means : Tensor
        grad f(x, D_i), float [N, d].
    """
    return (means - means.mean(0)).square().sum(1).mean()


def distribution_shift(means: Tensor, synthetic: Tensor) -> Tensor:
    """Return the scalar delta^2 = ||grad f(x, D) - grad f(x, D~)||^2 (Assumption 4).

    Parameters
    ----------
    means : Tensor
        grad f(x, D_i), float [N, d].
    synthetic : Tensor
        grad f(x, D~_i) of the parts of D~ that the sites hold, all of one size, float [N, d].
    """
    return (means.mean(0) - synthetic.mean(0)).square().sum()
