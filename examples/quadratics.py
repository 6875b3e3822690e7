"""Fedssyn's study on least squares (Li et al., 2024, sections 2.3 and A.3.2, figure 2): the rounds that pairs save.

    python examples/quadratics.py [--output DIR]

It prints a table of the rounds to the target for each share p of pairs that the clients exchange, and writes
quadratics.png. The paper leaves zeta^2, tau, the start and the step sizes open; they are set below. Seed s draws the
problem from s, the exchange from 100 + s and the stochastic gradients from 200 + s.

Client i holds n_i pairs (A_ij, b_ij) and f_i(x) = 1/(2 n_i) sum_j ||A_ij x - b_ij||^2, where every A_ij is a multiple
of the identity. All is computed in float64, for all clients at once.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9)
TARGET = 1.1e-6
TAU = 10
#: x before the first round is this in each of the d dimensions
START = torch.ones(25, dtype=torch.float64)
#: (a): zeta^2, far below the larger sigma^2; the one step size; the runs whose mean is drawn
FIXED_ZETA, NOISES, STEP_SIZE, REPEATS = 100.0, (0.0, 1000.0), 1e-3, 20
#: (b): zeta^2, so large that it decides, and the targets through which a line in 1/sqrt(epsilon) is fitted
TUNED_ZETA, FITTED = 1000.0, TARGET * 2.0 ** np.arange(6)
STEP_SIZES, MOST_ROUNDS = torch.logspace(-4.5, -1.8, 100, dtype=torch.float64), 400

_COLOURS = ("#4d4d4d", "#0072b2", "#007a5a", "#8a6d00", "#b84a00", "#a6428a")


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
        """Return grad F(x_i, xi_ij) at each client's own x_i for a freshly drawn pair j: [..., n, d] -> [..., n, d]."""
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
        eta, float64 [...]: every one is a separate run, all at once.
    tau, rounds : int
        Local steps of a round, and R.
    generator : torch.Generator, optional
        Draws the one pair of each stochastic gradient; without it, a step uses the full grad f_i.

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


@dataclass(frozen=True)
class Tuned:
    """FedAvg with the step size that is first at the target: R_p, A_p and B_p of R = A/sqrt(epsilon) + B, L_p."""

    rounds: int
    slope: float
    offset: float
    smoothness: float
    errors: Tensor


def problem(seed: int, p: float, zeta: float, sigma: float) -> LeastSquares:
    """Return the objectives of ``seed`` after the exchange."""
    functions = quadratics(torch.Generator().manual_seed(seed), dissimilarity=zeta, noise=sigma)
    return exchanged(functions, p, torch.Generator().manual_seed(100 + seed))


def tuned(seed: int, p: float) -> Tuned:
    """Run FedAvg with all step sizes at once, with full gradients: without sigma there is no noise."""
    after = problem(seed, p, TUNED_ZETA, 0.0)
    errors = federated_averaging(after, START, STEP_SIZES, tau=TAU, rounds=MOST_ROUNDS)
    needed = rounds_to(errors, TARGET)
    fewest = [float(rounds_to(errors, target).min()) for target in FITTED]
    slope, offset = np.polyfit(FITTED**-0.5, fewest, 1)
    best = int(needed.argmin())
    return Tuned(int(needed[best]), slope, offset, float(after.smoothness.max()), errors[:, best])


def table(found: dict[float, list[Tuned]]) -> str:
    """Return R_p of each seed, and what remains of R_0 and of A_0, with the lemma's bounds."""
    seeds = len(found[0.0])
    head = f"{'p':>4}  {'R_p, by seed':>{6 * seeds}}  R_p/R_0   1-p  A_p/A_0  (1-p)sqrt(L_p/L_0)  (1-p)^2"
    rows = [head]
    for p, runs in found.items():
        counts = "".join(f"{run.rounds:>6}" for run in runs)
        pairs = list(zip(runs, found[0.0], strict=True))
        left = np.mean([run.rounds / first.rounds for run, first in pairs])
        slope = np.mean([run.slope / first.slope for run, first in pairs])
        bound = (1 - p) * np.mean(
            [run.smoothness / first.smoothness for run, first in pairs]
        ) ** 0.5
        rows.append(
            f"{p:>4g}  {counts:>{max(12, 6 * seeds)}}  {left:>7.3f}  {1 - p:>4.2f}  {slope:>7.3f}"
            f"  {bound:>18.3f}  {(1 - p) ** 2:>7.3f}"
        )
    return "\n".join(rows)


def draw_fixed(axes: Axes) -> None:
    """Draw (a): one step size, stochastic gradients of one pair each, with and without noise in the pairs."""
    eta = torch.full((REPEATS,), STEP_SIZE, dtype=torch.float64)
    for sigma, dash in zip(NOISES, ("-", "--"), strict=True):
        for p, colour in zip(SHARES[:5:2], _COLOURS[:5:2], strict=True):
            errors = federated_averaging(
                problem(0, p, FIXED_ZETA, sigma),
                START,
                eta,
                tau=TAU,
                rounds=100,
                generator=torch.Generator().manual_seed(200),
            )
            name = f"p = {p:g}, σ² = {sigma:g}"
            axes.semilogy(errors.mean(1).numpy(), dash, color=colour, label=name, linewidth=1.3)
    axes.set_title(f"(a) one step size, ζ² = {FIXED_ZETA:g}", fontsize=10)


def draw_tuned(axes: Axes, found: dict[float, list[Tuned]]) -> None:
    """Draw (b): the step size tuned for each p, and the bound's rounds by what p = 0 needed."""
    first = found[0.0][0]
    for (p, runs), colour in zip(found.items(), _COLOURS, strict=True):
        run = runs[0]
        axes.semilogy(
            run.errors[: run.rounds + 1].numpy(), color=colour, label=f"p = {p:g}", linewidth=1.3
        )
        smoother = run.smoothness / first.smoothness
        bound = first.slope * (1 - p) * smoother**0.5 * TARGET**-0.5 + first.offset * smoother
        axes.plot([bound, bound], [TARGET / 3, TARGET * 3], color=colour, linewidth=2.5)
    axes.axhline(TARGET, color="#808080", linewidth=0.8, linestyle=":")
    axes.set_title(
        f"(b) tuned step size, σ² = 0, ζ² = {TUNED_ZETA:g}; bars: the bound", fontsize=10
    )


def figure(found: dict[float, list[Tuned]]) -> Figure:
    """Return both panels."""
    drawn = Figure(figsize=(10, 4), layout="constrained")
    left, right = drawn.subplots(1, 2)
    draw_fixed(left)
    draw_tuned(right, found)
    for axes in (left, right):
        axes.set_xlabel("round")
        axes.set_ylabel("||x − x*||²")
        axes.grid(color="#d7d8d9", linewidth=0.5)
        axes.legend(fontsize=8)
    return drawn


def main(arguments: list[str] | None = None) -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path(), metavar="DIR")
    parser.add_argument(
        "--seeds", type=int, default=3, choices=range(1, 11), help="problems, from seed 0 on"
    )
    given = parser.parse_args(arguments)
    found = {p: [tuned(seed, p) for seed in range(given.seeds)] for p in SHARES}
    print(
        f"rounds to {TARGET:g}: zeta^2 {TUNED_ZETA:g}, sigma^2 0, tau {TAU}, seeds 0 to {given.seeds - 1}"
    )
    print(table(found))
    given.output.mkdir(parents=True, exist_ok=True)
    figure(found).savefig(given.output / "quadratics.png", dpi=160)


if __name__ == "__main__":
    main()
