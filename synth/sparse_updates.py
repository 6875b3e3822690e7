"""Part of an update in place of all of it: a random part, or the largest numbers.

Random masking is Konečný et al., "Federated Learning: Strategies for Improving Communication Efficiency" (2016),
section 3, made unbiased; top-k is Aji and Heafield, "Sparse Communication for Distributed Gradient Descent" (2017)
without the residuals, since a device remembers nothing between rounds. Sets of places are coded as Elias (1974)
and Fano (1971) do it, or as a bitmap where that is smaller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=1)  # an update's mask is needed when it is read, and again when it is used
def mask(total: int, rate: float, seed: int) -> Tensor:
    """Draw which of ``total`` numbers are sent, each with probability 1 / ``rate``.

    The draw is the CPU's: the seed gives the mask.

    Parameters
    ----------
    total
        The length of the update, at least 0.
    rate
        At least 1, which keeps all of it.
    seed
        0 to 2^63 - 1.

    Returns
    -------
    bool [total], on the CPU; not to be written to.
    """
    # float64: so few of float32's 24 bits distinguish 1/rate from its neighbours that the mean would be off
    draws = torch.rand(total, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return draws < 1 / rate


def largest(update: Tensor, k: int) -> Tensor:
    """Return the places of the ``k`` largest magnitudes of a flat ``update``, int64 [k], ascending.

    Of equal magnitudes the one at the lower place goes first.
    """
    order = torch.sort(update.abs(), descending=True, stable=True).indices
    return order[:k].sort().values


def _low_bits(total: int, k: int) -> int:
    """Return floor(log2(total / k)), the bits of a place that Elias-Fano writes out."""
    return (total // k).bit_length() - 1


def _elias_fano_bytes(total: int, k: int) -> int:
    low = _low_bits(total, k)
    return -(-(k * low + k + ((total - 1) >> low)) // 8)


def _bitmap_bytes(total: int) -> int:
    return -(-total // 8)


def as_bitmap(total: int, k: int) -> bool:
    """Return whether ``k`` places of ``total`` are coded as a bit a number: more than about a quarter of them are."""
    return _bitmap_bytes(total) < _elias_fano_bytes(total, k)


def places_bytes(total: int, k: int) -> int:
    """Return the bytes that ``k`` places of ``total`` take, 1 <= k <= total, whichever these places are."""
    return min(_bitmap_bytes(total), _elias_fano_bytes(total, k))


def pack_places(places: Tensor, total: int) -> Tensor:
    """Code ascending places, in the smaller of two codes; which one that is, ``total`` and k say.

    Elias-Fano: a place's low bits are written out. The rest is a step of seldom more than two from the place
    before, and written as that many zeros and a one. Where few of the places are sent that is at most
    2 + log2(total / k) bits a place, of which no code saves much more than half a bit. The bitmap: a bit for each of
    ``total`` numbers, one where it is sent.

    Parameters
    ----------
    places
        int64 [k], ascending and distinct, from 0 to ``total`` - 1; k at least 1.

    Returns
    -------
    uint8 [places_bytes(total, k)].
    """
    k = len(places)
    bits = torch.zeros(8 * places_bytes(total, k), dtype=torch.uint8)
    if as_bitmap(total, k):
        bits[places] = 1
    else:
        low = _low_bits(total, k)
        shifts = torch.arange(low - 1, -1, -1)
        bits[: k * low] = ((places[:, None] >> shifts) & 1).flatten().to(torch.uint8)
        bits[k * low + (places >> low) + torch.arange(k)] = 1
    return (bits.view(-1, 8) << torch.arange(7, -1, -1)).sum(1).to(torch.uint8)


def unpack_places(code: Tensor, total: int, k: int) -> Tensor:
    """Return ``pack_places``' places, int64 [k]; ValueError if they are not k ascending ones below ``total``."""
    if len(code) != places_bytes(total, k):
        raise ValueError(f"{len(code)} bytes where {places_bytes(total, k)} were expected")
    bits = ((code[:, None].long() >> torch.arange(7, -1, -1)) & 1).flatten()
    low = 0 if as_bitmap(total, k) else _low_bits(total, k)
    ones = bits[k * low :].nonzero().flatten()
    if len(ones) != k:
        raise ValueError(f"{len(ones)} places where {k} were expected")
    if as_bitmap(total, k):
        places = ones
    else:
        written = (bits[: k * low].view(k, low) << torch.arange(low - 1, -1, -1)).sum(1)
        places = ((ones - torch.arange(k)) << low) + written
    if int(places[-1]) >= total:
        raise ValueError(f"the place {int(places[-1])} where at most {total - 1} is allowed")
    if bool((places.diff() <= 0).any()):
        raise ValueError("places that do not ascend")
    return places


# ---- low rank ------------------------------------------------------------------------------------
# A matrix as the product of two thin factors, by one step of a power iteration.
#
# Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization"
# (2019), Algorithm 1. A tensor of more dimensions is a matrix with its first dimension's rows, as there.


def rank_of(shape: Sequence[int], rank: int) -> int:
    """Return how many columns the factors of a tensor have; 0 where both together are no smaller than it.

    At most as many as its matrix has rows or columns; a vector or a number has no factors.
    """
    if len(shape) < 2 or not math.prod(shape):
        return 0
    rows, columns = shape[0], math.prod(shape[1:])
    kept = min(rank, rows, columns)
    return kept if kept * (rows + columns) < rows * columns else 0


def factors(matrix: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """Return P with orthonormal columns and Q, such that P Q^T is near ``matrix``.

    P is an orthonormal basis of ``matrix @ start``, and Q = matrix^T P, the best that there is for this P: the rest
    matrix - P Q^T is orthogonal to P. With as many columns as the matrix has of its smaller side it is 0.

    Parameters
    ----------
    matrix
        Floating [n, m].
    start
        Q of the last time, or noise: [m, r], r at most n and m.

    Returns
    -------
    P, [n, r], and Q, [m, r], in the dtype of ``matrix``.
    """
    basis = torch.linalg.qr((matrix @ start).double()).Q.to(matrix.dtype)
    return basis, matrix.T @ basis
