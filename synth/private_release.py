"""What leaves one iteration of private distribution matching: clipped contributions, summed, with noise.

Nothing here reads a number of an example past its clipped contribution: the divisor is the expected size
of a Poisson sample, and an example whose features are no numbers contributes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

#: Pixels of the images that one vectorised backward pass goes through
_CHUNK_PIXELS = {"cpu": 1 << 17}
_CHUNK_PIXELS_ELSEWHERE = 1 << 22


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
        shape -> standard normal noise of that shape, new each time, on the sums' device.
    """

    noise_multiplier: float
    clip: float
    normal: Callable[[Sequence[int]], Tensor]

    def factors(self, norms: Tensor) -> Tensor:
        """Return by what contributions of these lengths are scaled: 0 where a length is no number."""
        factors = (self.clip / norms.clamp_min(torch.finfo(norms.dtype).tiny)).clamp(max=1)
        return torch.where(norms.isfinite(), factors, torch.zeros_like(factors))

    def released(self, sums: Tensor) -> Tensor:
        """Return the sums with noise."""
        if not self.noise_multiplier:
            return sums
        noise = self.normal(tuple(sums.shape)).to(sums.dtype)
        return sums + self.noise_multiplier * self.clip * noise


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

    def summed(self, rows: Tensor) -> Tensor:
        """Return the sums of ``rows`` [b, d] by class, [C, d], in one order on every device."""
        ranks = torch.arange(self.classes, device=rows.device)
        member = (self.ranks == ranks[:, None]).to(rows.dtype)
        return member @ rows


def class_means(rows: Tensor, classes: int) -> Tensor:
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
    rows = real.rows
    kept = rows.nan_to_num(0, 0, 0) * gaussian.factors(rows.norm(dim=1))[:, None]
    return gaussian.released(real.summed(kept)) / expected[:, None].to(rows.dtype)


def noisy_gradients(
    embed: Callable[[Tensor], Tensor],
    real: Contributions,
    images: Tensor,
    expected: Tensor,
    gaussian: Gaussian,
) -> Tensor:
    """Return the gradient with respect to the images, clipped by example, with noise: ``gradient``.

    The gradient of Eq. 9 is a mean of contributions g(x_i) = J^T (hbar(S) - h(x_i)) with J twice the
    Jacobian of hbar(S), and the same for z. (The paper's Eq. 20 lacks the 2.) They are linear in
    h(x_i): their lengths need a vector-Jacobian product each, their clipped sum one for all.

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
    leaf = images.detach().requires_grad_()
    means = class_means(embed(leaf), real.classes)
    apart = 2 * (means.detach()[real.ranks] - real.rows)
    kept = (
        apart.nan_to_num(0, 0, 0) * gaussian.factors(_lengths(embed, apart, real, images))[:, None]
    )
    sums = _product(means, leaf, real.summed(kept))
    by_class = gaussian.released(sums).view(real.classes, -1)
    return (by_class / expected[:, None].to(sums.dtype)).view_as(images)


def _lengths(
    embed: Callable[[Tensor], Tensor], apart: Tensor, real: Contributions, images: Tensor
) -> Tensor:
    """Return ||g(x_i)||, [b].

    Vectorised by copies: each example has its class's images to itself in a batch, so that one
    backward pass gives the products of a whole chunk, whatever classes are in it.
    """
    by_class = images.view(real.classes, -1, *images.shape[1:])
    each = by_class.shape[1]
    pixels = each * images.shape[-2] * images.shape[-1]
    most = _CHUNK_PIXELS.get(images.device.type, _CHUNK_PIXELS_ELSEWHERE)
    lengths = [apart.new_empty(0)]
    size = max(1, most // pixels)
    for rows, ranks in zip(torch.split(apart, size), torch.split(real.ranks, size), strict=True):
        if not len(rows):
            continue
        copies = by_class[ranks].flatten(0, 1).requires_grad_()
        means = class_means(embed(copies), len(rows))
        products = _product(means, copies, rows)
        lengths.append(products.view(len(rows), -1).norm(dim=1))
    return torch.cat(lengths)


def _product(outputs: Tensor, inputs: Tensor, vector: Tensor) -> Tensor:
    """Return J^T v. By a scalar: given v, torch.autograd imports sympy first, which takes seconds."""
    (product,) = torch.autograd.grad((outputs * vector).sum(), inputs)
    return product
