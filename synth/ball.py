"""The ball of radius rho around a round's weights, in which FedDM's surrogate holds."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm


@torch.no_grad()
def sample_ball(
    centre: Tensor, rho: float, generator: torch.Generator, *, out: Tensor | None = None
) -> Tensor:
    """Draw w ~ P_w(w_r) = Clip(N(w_r, I), rho), FedDM's weights around a round's weights.

    The noise runs over all parameters at once, and noise longer than ``rho`` is scaled to that
    length. In the dimension of a network the clip always binds: w lies on the sphere.

    Parameters
    ----------
    centre
        w_r, flat, of shape [P].
    rho
        The ball's radius, at least 0; ``math.inf`` leaves the Gaussian as drawn.
    generator
        The source of the noise, on the device of ``centre``.
    out
        Where to write w, of the shape of ``centre``; by default a new tensor.

    Returns
    -------
    w, of shape [P]; the same tensor as ``out`` where that was given.
    """
    noise = torch.empty_like(centre) if out is None else out
    noise.normal_(generator=generator)
    return noise.mul_((rho / noise.norm()).clamp(max=1)).add_(centre)


@torch.no_grad()
def project_ball(parameters: Iterable[Tensor], centre: Iterable[Tensor], rho: float) -> None:
    """Project weights, in place, back into the ball of radius ``rho`` around ``centre``.

    Weights inside the ball are left as they are, to the bit. Nothing is copied between host and
    device.

    Parameters
    ----------
    parameters
        The weights w, tensor by tensor, as ``model.parameters()`` gives them.
    centre
        w_r in the same order and shapes; none of its tensors shares memory with
        ``parameters``.
    rho
        The ball's radius, at least 0.
    """
    weights = list(parameters)
    offsets = [weight - middle for weight, middle in zip(weights, centre, strict=True)]
    excess = (rho / get_total_norm(offsets)).clamp(max=1) - 1
    for weight, offset in zip(weights, offsets, strict=True):
        weight.add_(offset * excess)
