"""FedDM's one-dimensional example (Xiong et al., 2023, figure 1, appendix A): 20 learned pairs replace 100 real ones.

    python examples/surrogate.py [--output DIR] [--seed N]

It prints the objective, the surrogate and the tangent at w = 0 for some weights and where each is least, and writes
surrogate.png. A prediction is sigmoid(w x), the loss binary cross-entropy. Pairs are learned by Eq. 7, at weights drawn
from N(0, 1), cut off at RHO. Eq. 17 prints p >= 0.9 for x >= 0, by which y would not depend on x: in this example y is
1 for nine in ten of these, and for one in ten of the others. Radius, steps and learning rate are ours, as the paper
states none.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

REAL, LEARNED = 100, 20
RHO, STEPS, WEIGHTS, LR = 5.0, 2000, 64, 0.05
SHOWN = torch.linspace(-1, 5, 121)


def objective(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """Return the mean loss of the pairs at each weight: [n], [n], [m] -> [m]."""
    logits = w[:, None] * x
    return binary_cross_entropy_with_logits(logits, y.expand_as(logits), reduction="none").mean(1)


def pairs(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw the real x and y, float32 [100] each."""
    x, p = torch.randn(REAL, generator=generator), torch.rand(REAL, generator=generator)
    return x, torch.where(x >= 0, p < 0.9, p < 0.1).float()


def learned(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return 20 pairs, half of each class, whose loss is the real one's around w = 0."""
    mine = torch.randn(LEARNED, generator=generator).requires_grad_()
    labels = torch.arange(LEARNED).remainder(2).float()
    adam = torch.optim.Adam([mine], lr=LR)
    for _ in range(STEPS):
        w = torch.randn(WEIGHTS, generator=generator).clamp(-RHO, RHO)
        distance = (objective(x, y, w) - objective(mine, labels, w)).square().mean()
        adam.zero_grad()
        distance.backward()
        adam.step()
    return mine.detach(), labels


def curves(seed: int) -> dict[str, Tensor]:
    """Return the three at the weights that are shown, [121] each."""
    generator = torch.Generator().manual_seed(seed)
    x, y = pairs(generator)
    at_zero = torch.zeros(1, requires_grad=True)
    value = objective(x, y, at_zero)
    (slope,) = torch.autograd.grad(value.sum(), at_zero)
    surrogate = objective(*learned(x, y, generator), SHOWN)
    tangent = value.detach() + slope * SHOWN
    return {"objective": objective(x, y, SHOWN), "surrogate": surrogate, "tangent": tangent}


def main(arguments: list[str] | None = None) -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path(), metavar="DIR")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    found = curves(given.seed)
    print("     w  " + "  ".join(found))
    for i in range(0, len(SHOWN), 20):
        print(f"{SHOWN[i]:6.1f}" + "".join(f"{curve[i]:11.4f}" for curve in found.values()))
    least = (f"{name} {SHOWN[curve.argmin()]:.2f}" for name, curve in found.items())
    print(f"least at w: {', '.join(least)}")
    figure = Figure(figsize=(5, 3.5), layout="constrained")
    axes = figure.subplots()
    for (name, curve), colour in zip(found.items(), ("#0072b2", "#b84a00", "#4d4d4d"), strict=True):
        axes.plot(SHOWN.numpy(), curve.numpy(), color=colour, label=name)
    axes.set(xlabel="w", ylabel="loss", ylim=(0, 1.5))
    axes.legend()
    given.output.mkdir(parents=True, exist_ok=True)
    figure.savefig(given.output / "surrogate.png", dpi=160)


if __name__ == "__main__":
    main()
