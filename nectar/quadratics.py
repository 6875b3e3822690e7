"""Fedssyn's study on least squares (Li et al., 2024, sections 2.3 and A.3.2): shuffled pairs and the rounds they save.

Client i holds n_i pairs (A_ij, b_ij) and f_i(x) = 1/(2 n_i) sum_j ||A_ij x - b_ij||^2, where every A_ij is a multiple
of the identity. All is computed in float64, for all clients at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class LeastSquares:
    """The clients' objectives f_i; f is their mean.

    Attributes
    ----------
    factors : Tensor
        a_ij of A_ij = a_ij I_d, float64 [n, n_i].
    targets : Tensor
        b_ij, float64 [n, n_i, d].
    """

    factors: Tensor
    targets: Tensor

    @cached_property
    def smoothness(self) -> Tensor:
        """L_i = ||1/n_i sum_j A_ij^T A_ij|| of each client, [n]: its largest is L_max, its mean L_avg."""
        return self.factors.square().mean(1)

    @cached_property
    def _shift(self) -> Tensor:
        """c_i = 1/n_i sum_j A_ij^T b_ij, [n, d]."""
        return (self.factors[..., None] * self.targets).mean(1)

    @cached_property
    def minimiser(self) -> Tensor:
        """x*, where the gradient of f is zero, [d]."""
        return self._shift.sum(0) / self.smoothness.sum()

    def gradients(self, x: Tensor) -> Tensor:
        """Return grad f_i of each client at its own x_i or at a common x: [..., n or 1, d] -> [..., n, d]."""
        return self.smoothness[:, None] * x - self._shift

    def example_gradients(self, x: Tensor) -> Tensor:
        """Return grad F(x, xi_ij) = A_ij^T (A_ij x - b_ij) of every pair at one x: [d] -> [n, n_i, d]."""
        factors = self.factors[..., None]
        return factors * (factors * x - self.targets)

    def sampled_gradients(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return grad F(x_i, xi_ij) at each client's own x_i for a pair j drawn anew: [..., n, d] -> [..., n, d]."""
        n, pairs = self.factors.shape
        j = torch.randint(pairs, x.shape[:-1], generator=generator, device=x.device)
        i = torch.arange(n, device=x.device)
        factors = self.factors[i, j][..., None]
        return factors * (factors * x - self.targets[i, j])


def quadratics(
    generator: torch.Generator,
    *,
    dissimilarity: float,
    noise: float,
    clients: int = 10,
    pairs: int = 100,
    dimension: int = 25,
) -> LeastSquares:
    """Draw A_ij = i I_d, mu_i ~ N(0, zeta^2 (i d)^-2 I) and b_ij ~ N(mu_i, sigma^2 (i d)^-2 I).

    Parameters
    ----------
    dissimilarity, noise : float
        zeta^2 and sigma^2.
    clients, pairs, dimension : int
        n, n_i and d.
    """
    device = generator.device
    i = torch.arange(1, clients + 1, dtype=torch.float64, device=device)
    scale = (1 / (i * dimension))[:, None, None]

    def normal(each: int) -> Tensor:
        shape = (clients, each, dimension)
        return torch.randn(shape, dtype=torch.float64, generator=generator, device=device)

    mu = normal(1) * scale * dissimilarity**0.5
    targets = mu + normal(pairs) * scale * noise**0.5
    return LeastSquares(i[:, None].expand(clients, pairs), targets)


def exchanged(problem: LeastSquares, p: float, generator: torch.Generator) -> LeastSquares:
    """Return the problem after p n_i random pairs of each client were pooled, shuffled and handed out in equal parts.

    Each client has n_i pairs as before, and all pairs are still there: f and x* stay what they were.

    Raises
    ------
    ValueError
        If p is not from 0 to 1.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"the share p of pairs that are exchanged goes from 0 to 1, it is {p}")
    n, pairs = problem.factors.shape
    given = round(p * pairs)
    device = generator.device
    # A random order of each client's pairs, of which the first are given away; at their places others arrive.
    order = torch.rand(n, pairs, generator=generator, device=device).argsort(1)
    held = order + pairs * torch.arange(n, device=device)[:, None]
    pool = held[:, :given].flatten()
    dealt = pool[torch.randperm(n * given, generator=generator, device=device)]
    held[:, :given] = dealt.view(n, given)
    return LeastSquares(problem.factors.flatten()[held], problem.targets.flatten(0, 1)[held])


def federated_averaging(
    problem: LeastSquares,
    start: Tensor,
    step_sizes: Tensor,
    *,
    tau: int,
    rounds: int,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Run FedAvg (Algorithm II) with all clients and return ||x - x*||^2 ahead of each round and after the last.

    Parameters
    ----------
    start : Tensor
        x before the first round, float64 [d].
    step_sizes : Tensor
        eta, float64 [...]: every one is a run of its own, all at once.
    tau, rounds : int
        Local steps of a round, and R.
    generator : torch.Generator, optional
        Draws the one pair of each stochastic gradient; without it, a step goes along the whole grad f_i.

    Returns
    -------
    Tensor
        Float64 [R + 1, ...]. A step size that is too large for the problem ends in infinity or NaN.
    """
    eta = step_sizes[..., None, None]
    x = start.expand(*step_sizes.shape, 1, -1)
    n = len(problem.factors)
    errors = [(x - problem.minimiser).square().sum((-2, -1))]
    for _ in range(rounds):
        y = x.expand(*step_sizes.shape, n, -1)
        for _ in range(tau):
            slopes = (
                problem.gradients(y)
                if generator is None
                else problem.sampled_gradients(y, generator)
            )
            y = y - eta * slopes
        x = y.mean(-2, keepdim=True)
        errors.append((x - problem.minimiser).square().sum((-2, -1)))
    return torch.stack(errors)


def rounds_to(errors: Tensor, target: float) -> Tensor:
    """Return after how many rounds each run is at the target for the first time; infinity where it never is.

    Parameters
    ----------
    errors : Tensor
        As ``federated_averaging`` returns them, [R + 1, ...].
    target : float
        epsilon.

    Returns
    -------
    Tensor
        Float64 [...].
    """
    there = errors <= target
    first = there.to(torch.uint8).argmax(0).double()
    return first.where(there.any(0), torch.inf)
