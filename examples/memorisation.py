"""How many images must a site have before its diffusion model draws new ones, not its own again?

    python examples/memorisation.py [--output DIR] [--sizes 10,30,100,300] [--steps 500,1000,2000] [--drawn 200]

Fedssyn's generator for digits is trained on n of them. Of the images it draws, the table counts those that are
copies, which are at most a third as far from the nearest image trained on as from the second nearest (Yoon et al.,
2023), and those that are nearer to an image trained on than to any of n others from the same source, which were not:
half of them do where nothing is memorised. memorisation.png shows ten images for each n, each above its nearest image
trained on and its nearest other one.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from client_app.synthesis import new_generator
from common.config.loading import load
from common.data.published.sources import read_digits
from common.draws.seeding import generator
from common.settings.fedssyn import FedssynSettings

SIZES, STEPS, DRAWN, SHOWN = (10, 30, 100, 300), (500, 1000, 2000), 200, 10
#: a digit's largest raw value
SCALE = 16
COPY = 1 / 3


@dataclass(frozen=True)
class Row:
    """What a generator of ``size`` images draws after ``steps`` steps.

    Attributes
    ----------
    copies : float
        Share of its images that copy one it was trained on; the same of real images it was not trained on is
        ``real_copies``.
    nearer : float
        Share that is nearer to the images trained on than to as many others.
    images : Tensor
        Some of them, then the nearest ones trained on and the nearest others: [3, n, 1, 8, 8], 0 to 1.
    """

    size: int
    steps: int
    copies: float
    real_copies: float
    nearer: float
    images: Tensor


def study(size: int, steps: tuple[int, ...], count: int, seed: int) -> list[Row]:
    """Train on ``size`` digits and judge ``count`` images that are drawn after each number of steps."""
    split = read_digits()[0]
    order = torch.randperm(len(split), generator=generator(seed, "memorisation")).numpy()
    images = torch.from_numpy(split.images[order].astype(np.float32) / SCALE)
    labels = torch.from_numpy(split.labels[order])
    held, others = images[:size], images[size : 2 * size]
    settings = load({"method": "fedssyn"}).settings
    assert isinstance(settings, FedssynSettings)
    model = new_generator(
        settings,
        10,
        held * 2 - 1,
        labels[:size],
        generator(seed, "model", size),
        lambda epoch: generator(seed, "epoch", epoch),
    )
    an_epoch = -(-size // settings.batch)
    rows = []
    for wanted in steps:
        for _ in model.run(max(1, wanted // an_epoch), lambda: None):
            pass
        of_class = labels[torch.arange(count) % size]
        drawn = (model.draw(of_class, generator(seed, "draws", wanted)) + 1) / 2
        drawn = (drawn.clamp(0, 1) * SCALE).round() / SCALE
        rows.append(judged(wanted, drawn, held, others))
    return rows


def judged(steps: int, drawn: Tensor, held: Tensor, others: Tensor) -> Row:
    """Count the copies among ``drawn``, and those nearer to ``held`` than to ``others``."""
    own, own_at = distances(drawn, held).min(1)
    other, other_at = distances(drawn, others).min(1)
    shown = slice(SHOWN)
    return Row(
        len(held),
        steps,
        copied(drawn, held),
        copied(others, held),
        (own < other).float().mean().item(),
        torch.stack([drawn[shown], held[own_at[shown]], others[other_at[shown]]]),
    )


def distances(images: Tensor, among: Tensor) -> Tensor:
    """Return how far each image is from each of ``among``: float [n, m]."""
    return torch.cdist(images.flatten(1), among.flatten(1))


def copied(images: Tensor, among: Tensor) -> float:
    """Return the share of images that are at most a third as far from the nearest as from the second nearest."""
    first, second = distances(images, among).topk(2, largest=False).values.unbind(1)
    return (first <= COPY * second).float().mean().item()


def table(rows: list[Row]) -> str:
    """Return the rows as text."""
    lines = [
        "images  steps  copies  real images  nearer to those trained on",
        *(
            f"{row.size:6} {row.steps:6} {row.copies:7.0%} {row.real_copies:12.0%} {row.nearer:27.0%}"
            for row in rows
        ),
    ]
    return "\n".join(lines)


def figure(rows: list[Row]) -> Figure:
    """Draw each row's images above their nearest ones."""
    drawing = Figure(figsize=(8, 2.6 * len(rows)), layout="constrained")
    for place, row in zip(drawing.subplots(len(rows), 1, squeeze=False)[:, 0], rows, strict=True):
        framed = torch.nn.functional.pad(row.images[:, :, 0], (1, 1, 1, 1), value=0.5)
        strips = torch.cat([torch.cat(list(strip), 1) for strip in framed], 0)
        place.imshow(strips.numpy(), cmap="gray_r", vmin=0, vmax=1)
        place.set_title(
            f"{row.size} images, {row.steps} steps: drawn; nearest trained on; nearest of others",
            fontsize=9,
        )
        place.set_axis_off()
    return drawing


def whole_numbers(text: str) -> tuple[int, ...]:
    """Read numbers joined by commas."""
    return tuple(int(part) for part in text.split(","))


def main(arguments: list[str] | None = None) -> None:
    """Run the study and write its figure."""
    parser = argparse.ArgumentParser(
        description="Does a site's diffusion model memorise its images?"
    )
    parser.add_argument("--output", type=Path, default=Path())
    parser.add_argument("--sizes", type=whole_numbers, default=SIZES)
    parser.add_argument("--steps", type=whole_numbers, default=STEPS)
    parser.add_argument("--drawn", type=int, default=DRAWN)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    rows = [
        row for size in chosen.sizes for row in study(size, chosen.steps, chosen.drawn, chosen.seed)
    ]
    print(table(rows))
    chosen.output.mkdir(parents=True, exist_ok=True)
    last = [row for row in rows if row.steps == chosen.steps[-1]]
    figure(last).savefig(chosen.output / "memorisation.png", dpi=100)


if __name__ == "__main__":
    main()
