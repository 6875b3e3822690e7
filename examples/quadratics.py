"""Fedssyn's study on least squares (Li et al., 2024, figure 2): how many rounds exchanged pairs save FedAvg.

    python examples/quadratics.py [--output DIR]

It prints a table of the rounds to the target for each share p of pairs that the clients exchange, and writes
quadratics.png. The paper leaves zeta^2, tau, the start and the step sizes open; they stand below. Seed s draws the
problem from s, the exchange from 100 + s and the stochastic gradients from 200 + s.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from nectar.quadratics import (
    LeastSquares,
    exchanged,
    federated_averaging,
    quadratics,
    rounds_to,
)

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
    whole = quadratics(torch.Generator().manual_seed(seed), dissimilarity=zeta, noise=sigma)
    return exchanged(whole, p, torch.Generator().manual_seed(100 + seed))


def tuned(seed: int, p: float) -> Tuned:
    """Run FedAvg with all step sizes at once, along whole gradients: without sigma there is no noise then."""
    after = problem(seed, p, TUNED_ZETA, 0.0)
    errors = federated_averaging(after, START, STEP_SIZES, tau=TAU, rounds=MOST_ROUNDS)
    needed = rounds_to(errors, TARGET)
    fewest = [float(rounds_to(errors, target).min()) for target in FITTED]
    slope, offset = np.polyfit(FITTED**-0.5, fewest, 1)
    best = int(needed.argmin())
    return Tuned(int(needed[best]), slope, offset, float(after.smoothness.max()), errors[:, best])


def table(found: dict[float, list[Tuned]]) -> str:
    """Return R_p of each seed, and what remains of R_0 and of A_0 beside what the lemma's bounds promise."""
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
