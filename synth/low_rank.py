"""A matrix as the product of two thin factors, by one step of a power iteration.

Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization" (2019),
Algorithm 1. A tensor of more dimensions is a matrix with its first dimension's rows, as there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


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
