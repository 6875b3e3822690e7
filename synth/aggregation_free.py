"""FedAF's terms (Wang et al., CVPR 2024): weights to condense at, logits that all sites share, knowledge matching.

The paper writes one function for each of these, and leaves the order of the sliced Wasserstein distance, the number of
directions and what a class counts in L_LGKM open. Here the distance is the squared one of order 2, which towards a
single point is a mean over samples and directions, and every class counts as one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_LEAST = 1e-12
"""A share that counts as 0: the lower bound of logarithms."""


def mixed_weights(
    gamma: float, fresh: Callable[[], Tensor]
) -> Callable[[Tensor, torch.Generator, Tensor], None]:
    """Return what writes w <- gamma w + (1 - gamma) w~ to a tensor [P]; ``fresh`` draws initial weights w~."""

    def draw(centre: Tensor, _: torch.Generator, out: Tensor) -> None:
        torch.lerp(fresh(), centre, gamma, out=out)

    return draw


def directions(count: int, dimension: int, generator: torch.Generator) -> Tensor:
    """Return ``count`` directions, uniform on the sphere, [count, dimension]."""
    drawn = torch.randn(count, dimension, generator=generator, device=generator.device)
    return torch.nn.functional.normalize(drawn, dim=1)


def towards_others(
    logits: Tensor, labels: Tensor, others: Tensor, along: Tensor, averages: Tensor
) -> Tensor:
    """Return L_CDC: for each class the squared sliced distance of its images' logits to what all sites have there.

    Towards one point the sorted projections of both sides need no sorting: W_2^2 along theta is the mean of
    (theta (z_i - v))^2. Over all directions that is |z_i - v|^2 / K.

    Parameters
    ----------
    logits : Tensor
        Of the images, [m, K].
    labels : Tensor
        Their classes, int64 [m], in the order of ``averages``.
    others : Tensor
        V, [K, K]; a class whose row is NaN counts nothing.
    along : Tensor
        The directions, [L, K].
    averages : Tensor
        A class's row has 1/m_c at its images, [C, m].

    Returns
    -------
    Tensor
        The sum over classes, a scalar.
    """
    there = others[labels]
    known = ~there.isnan().any(1)
    distances = (logits - torch.where(known[:, None], there, logits.detach())) @ along.T
    each = torch.where(known, distances.square().mean(1), 0.0)
    return (averages @ each).sum()


def mean_rows(rows: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the classes among ``labels``, int64 [c], and the mean of the ``rows`` [n, K] of each, [c, K]."""
    sums = rows.new_zeros(classes, rows.shape[1]).index_add_(0, labels, rows)
    counts = torch.bincount(labels, minlength=classes)
    there = counts.nonzero().flatten()
    return there, sums[there] / counts[there, None]


def softened(logits: Tensor, temperature: float) -> Tensor:
    """Return softmax(z / tau), the shares of the classes, of the shape of ``logits``."""
    return torch.softmax(logits / temperature, -1)


def knowledge_gap(logits: Tensor, labels: Tensor, shares: Tensor, temperature: float) -> Tensor:
    """Return L_LGKM: half of KL(R || T) + KL(T || R), the mean over a batch's classes.

    T_c is the mean of the model's softened outputs on the batch's images of class c.

    Parameters
    ----------
    logits : Tensor
        The model's, [n, K].
    labels : Tensor
        The images' classes, int64 [n].
    shares : Tensor
        R, [K, K]; NaN in the row of a class that no site holds, which does not count.
    temperature : float
        tau.

    Returns
    -------
    Tensor
        A scalar; 0 where no class of the batch is known.
    """
    there, own = mean_rows(softened(logits, temperature), labels, len(shares))
    theirs = shares[there]
    known = ~theirs.isnan().any(1)
    p = torch.where(known[:, None], theirs, own.detach()).clamp_min(_LEAST)
    q = own.clamp_min(_LEAST)
    # KL(p || q) + KL(q || p) in one sum
    both = ((p - q) * (p.log() - q.log())).sum(1)
    return 0.5 * torch.where(known, both, 0.0).sum() / known.sum().clamp_min(1)
