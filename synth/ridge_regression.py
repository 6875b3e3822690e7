"""Ridge regression from sums over examples: what Fed3R (Fani et al., ICML 2024) has its sites send, once.

A row x is an example's features and a constant, y its class as zeros and a one. Sites send A = sum x x' and
B = sum x y'; these add up over any division, and W = (A + lambda I)^-1 B is that of all rows in one place. All is
float64.

**Noise.** Rows are no longer than 1. One example more, or less, moves A by x x', whose upper triangle with the parts
off the diagonal times sqrt 2 is as long as the matrix in the Frobenius norm: |x|^2 <= 1. It moves B by x y', as long
as x: <= 1. Both together it moves by sqrt(|x|^4 + |x|^2) <= sqrt 2, which a row of length 1 reaches: the sensitivity of
both sums as one vector, under adding or removing an example. B alone has a sensitivity of 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

SENSITIVITY = math.sqrt(2)
"""By how much an example moves A, as `triangle` gives it, and B together; see the module."""

MOST = 64.0
"""Deviations of an axis at which a plain row ends."""

LENGTH, SHARE = 1.0, 0.1
"""The usual length of a bounded row before it is cut to 1, and the constant's share of its square."""

LEVELS = 127
"""The level of the largest number that a byte represents."""


def triangle(matrix: Tensor, *, as_long: bool = False) -> Tensor:
    """Return the upper triangle of symmetric matrices [..., d, d].

    With ``as_long``, parts off the diagonal are times sqrt 2: as long a vector as the matrix.
    """
    rows, columns = torch.triu_indices(matrix.shape[-1], matrix.shape[-1])
    packed = matrix[..., rows, columns]
    return packed.where(rows == columns, packed * SENSITIVITY) if as_long else packed


def square(packed: Tensor, d: int, *, as_long: bool = False) -> Tensor:
    """Return the symmetric matrix [d, d] whose `triangle` is given."""
    rows, columns = torch.triu_indices(d, d)
    matrix = packed.new_zeros(d, d)
    matrix[rows, columns] = (
        packed.where(rows == columns, packed / SENSITIVITY) if as_long else packed
    )
    return matrix + matrix.triu(1).mT


@dataclass(frozen=True)
class Sums:
    """A [d, d] and B [d, classes] of some rows, float64; of integer rows possibly int64."""

    squares: Tensor
    products: Tensor

    @classmethod
    def of(cls, rows: Tensor, labels: Tensor, classes: int) -> Sums:
        """Return the sums of rows [n, d] with labels int64 [n]."""
        products = rows.new_zeros(classes, rows.shape[1]).index_add_(0, labels, rows)
        return cls(rows.mT @ rows, products.mT)

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.squares + other.squares, self.products + other.products)

    def scaled(self, by: Tensor) -> Sums:
        """Return the sums of rows times ``by`` [d], part by part; float64."""
        return Sums(self.squares * by[:, None] * by, self.products * by[:, None])

    def mended(self, error: float) -> Sums:
        """Return sums whose A is positive although its correlations are off by a matrix of this length."""
        return Sums(self.squares + error * torch.diag(self.squares.diagonal()), self.products)

    def solved(self, penalty: float) -> Tensor:
        """Return (A + lambda I)^-1 B, [d, classes]."""
        eye = torch.eye(len(self.squares), dtype=self.squares.dtype)
        solution: Tensor = torch.linalg.solve(self.squares + penalty * eye, self.products)
        return solution


def positive(matrix: Tensor) -> Tensor:
    """Return the nearest positive semidefinite matrix to a symmetric one."""
    values, vectors = torch.linalg.eigh(matrix)
    nearest: Tensor = (vectors * values.clamp_min(0)) @ vectors.mT
    return nearest


# ---- what is summed ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """How places z along the axes become the rows that are summed, and the solution weights for places.

    An axis is first divided by its deviation over public images, ``spread`` [d - 1]; of ``bound`` rows, none longer
    than 1, by the root of that. With ``steps`` rows are rounded to that many a deviation: sums are exact.
    """

    spread: Tensor
    bound: bool = False
    steps: int = 0

    def of(self, places: Tensor) -> Tensor:
        """Return the rows [n, d] of places [n, d - 1], float64; one of no finite numbers is of zeros."""
        rows = torch.cat([places, places.new_ones(len(places), 1)], 1) / self.by
        rows = torch.where(rows.isfinite().all(1, keepdim=True), rows, 0)
        if self.bound:
            lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
            return rows / lengths.clamp_min(1)
        rows = rows.clamp(-self.longest, self.longest)
        return rows.round() if self.steps else rows

    @property
    def longest(self) -> float:
        """The largest number of a row."""
        return 1.0 if self.bound else MOST * (self.steps or 1)

    @property
    def constant(self) -> float:
        """The constant of a row."""
        return float(1 / self.by[-1])

    @property
    def variance(self) -> Tensor:
        """The variances of a row's numbers over the public images, [d]: 0 of the constant."""
        return torch.cat([self.spread, self.spread.new_zeros(1)]).div(self.by).square()

    @cached_property
    def by(self) -> Tensor:
        """The divisors of places and 1, [d]."""
        one = self.spread.new_ones(1)
        if not self.bound:
            return torch.cat([self.spread, one]) / (self.steps or 1)
        long = (self.spread.sum() / (1 - SHARE)).sqrt() / LENGTH
        return torch.cat([self.spread.sqrt() * long, one / (LENGTH * SHARE**0.5)])


# ---- the encoding of sums -----------------------------------------------------------------------------


def coded(sums: Sums, roots: Tensor, *, both: bool, as_long: bool = False) -> Tensor:
    """Return A and B, or B alone, over the products of roots [d + classes], in a byte each, around 128: uint8 [m]."""
    by, of_classes = (
        roots[: len(sums.squares), None].clamp_min(1e-12),
        roots[len(sums.squares) :].clamp_min(1e-12),
    )
    parts = [triangle(sums.squares / by / by.mT, as_long=as_long)] if both else []
    levels = torch.cat([*parts, (sums.products / by / of_classes).flatten()]) * LEVELS
    return (levels.round().clamp(-LEVELS, LEVELS) + 128).to(torch.uint8)


def decoded(levels: Tensor, roots: Tensor, classes: int, *, as_long: bool = False) -> Sums:
    """Return the sums that `coded` bytes represent; A of zeros if it was not sent."""
    d = len(roots) - classes
    sums = unpacked((levels.double() - 128) / LEVELS, d, classes, as_long=as_long)
    by = roots[:d, None]
    return Sums(sums.squares * by * by.mT, sums.products * by * roots[d:])


def unpacked(numbers: Tensor, d: int, classes: int, *, as_long: bool = False) -> Sums:
    """Return the sums of a triangle, or nothing, and B, one after the other: [m]."""
    packed, products = torch.split(numbers, [len(numbers) - d * classes, d * classes])
    squares = square(packed, d, as_long=as_long) if len(packed) else numbers.new_zeros(d, d)
    return Sums(squares, products.view(d, classes))


def own_roots(sums: Sums, *, both: bool) -> Tensor:
    """Return the roots of the sums of squares of x and y, [d + classes], over which A and B are correlations.

    So no number is beyond 1, for any axes, and a step is 1/127. Where B alone is sent, an axis' root is
    the least that keeps its numbers within 1.
    """
    counts = sums.products[-1].clamp_min(0).sqrt()
    alone = (sums.products.abs() / counts.clamp_min(1e-12)).amax(1)
    roots = torch.cat([sums.squares.diagonal().sqrt() if both else alone, counts])
    return roots.clamp_max(65504).half().double()  # as they are sent


def coding_error(shares: Tensor, d: int) -> float:
    """Return the length of the error that bytes leave in the total's correlations, by the sites' shares of rows [K].

    A site with a share p has errors of about p / (127 sqrt 12) there, and a symmetric matrix of independent ones, of
    variance v, is about 2 sqrt(v d) long.
    """
    return 2 * math.sqrt(d * float(shares.square().sum()) / 12) / LEVELS


# ---- lambda --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """Generalised cross-validation (Golub, Heath and Wahba, 1979) as a function of lambda, from sums alone.

    ``values`` are A's eigenvalues e, ``parts`` q_i = |(V'B)_i|^2, ``rows`` how many were summed; each has |y|^2 = 1.
    """

    values: Tensor
    parts: Tensor
    rows: float

    @classmethod
    def of(cls, sums: Sums, rows: float) -> Curve:
        """Split the sums."""
        values, vectors = torch.linalg.eigh(sums.squares)
        return cls(values.clamp_min(0), (vectors.mT @ sums.products).square().sum(1), rows)

    def score(self, penalty: Tensor) -> Tensor:
        """Return n rss / (n - df)^2, an estimate of the squared error of a new example's y; infinity where df >= n.

        rss = n - 2 sum q/(e + l) + sum q e/(e + l)^2 and df = sum e/(e + l).
        """
        shrunk = self.values + penalty[..., None]
        explained: Tensor = (self.parts * (2 / shrunk - self.values / shrunk**2)).sum(-1)
        free: Tensor = self.rows - (self.values / shrunk).sum(-1)
        score = self.rows * (self.rows - explained).clamp_min(0) / free**2
        return score.where(free > 0, math.inf)

    def least(self) -> float:
        """Return the lambda of the least score: of a grid from 1e-9 to 10 times the largest e, then two finer ones."""
        top = math.log10(max(float(self.values.max()), 1e-30))
        low, high, best = top - 9, top + 1, 0.0
        for _ in range(3):
            grid = torch.linspace(low, high, 101, dtype=torch.float64)
            best = float(grid[self.score(10**grid).argmin()])
            low, high = best - (high - low) / 100, best + (high - low) / 100
        return float(10**best)


def chance_error(classes: int) -> float:
    """Return the mean squared error of a number of y where each class is taken to be as likely."""
    return 1 / classes - 1 / classes**2


def penalty_of_noise(deviation: float, d: int) -> float:
    """Return the length of the noise in A, about sigma sqrt(2 d), where each number of `triangle` has sigma's."""
    return deviation * math.sqrt(2 * d)


# ---- what is made of class sums, or with public examples -----------------------------------------


def within(sums: Sums, constant: float) -> Tensor:
    """Return the covariance around the classes' means, [d, d]; B's last row is ``constant`` times their numbers."""
    counts = (sums.products[-1] / constant).clamp_min(0)
    means = sums.products / counts.clamp_min(1)
    return (sums.squares - (means * counts) @ means.mT) / counts.sum().clamp_min(1)


def with_covariance(products: Tensor, covariance: Tensor, constant: float) -> Sums:
    """Return both sums where sites sent B alone: A has the classes' means, and a public covariance around these."""
    nothing = Sums(torch.zeros_like(covariance), products)
    counts = (products[-1] / constant).clamp_min(0).sum()
    return Sums(counts * covariance - counts.clamp_min(1) * within(nothing, constant), products)


def joined(public: Sums, noisy: Tensor, rows: float, deviation: float) -> Tensor:
    """Return the posterior mean of W [d, classes] of public examples and of others' class sums with noise.

    In the eigenbasis V of the public A_v / n_v, E_i = N e_i; s2 is the label noise that generalised cross-validation
    finds on the public examples, v what the others' true covariance may differ by, 1/C - 1/C^2 - s2:
    w_i = E_i / (s2 E_i + sigma^2 + N E_i v / n_v), and W solves
    (A_v / s2 + sum w_i E_i V_i V_i' + lambda_v / s2) W = B_v / s2 + sum w_i V_i (V' B~)_i.

    Parameters
    ----------
    noisy, rows
        B~ [d, classes], and N, how many rows it is the sum of; above 0.
    deviation
        sigma, of the noise in each number of ``noisy``.
    """
    classes, seen = noisy.shape[1], float(public.products[-1].sum() ** 2 / public.squares[-1, -1])
    curve = Curve.of(public, seen)
    penalty = curve.least()
    label = float(curve.score(torch.tensor(penalty, dtype=torch.float64))) / classes
    values, vectors = torch.linalg.eigh(public.squares / seen)
    energy = rows * values.clamp_min(0)
    unlike = max(chance_error(classes) - label, 0.0)
    weight = energy / (label * energy + deviation**2 + rows * energy * unlike / seen).clamp_min(
        1e-300
    )
    left = public.squares / label + (vectors * (weight * energy)) @ vectors.mT
    right = public.products / label + vectors @ (weight[:, None] * (vectors.mT @ noisy))
    return Sums(left, right).solved(penalty / label)
