"""Folders of small images, for tests of data sets that are folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (30, 40, 210)}
CLASSES = ",".join(COLOURS)


def paint(folder: Path, name: str, count: int, *, side: int = 12, seed: int = 0) -> None:
    """Put ``count`` noisy images of a colour into ``<folder>/<name>/``."""
    rng = np.random.default_rng([seed, *map(ord, name)])
    (folder / name).mkdir(parents=True, exist_ok=True)
    for i in range(count):
        noise = rng.normal(0, 40, (side, side, 3))
        pixels = (np.array(COLOURS[name]) + noise).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / name / f"{i:03d}.png")


def paint_split(folder: Path, *, train: int = 20, test: int = 5) -> Path:
    """Put a training and a test split of all colours below ``folder`` and return it."""
    for name in COLOURS:
        paint(folder / "train", name, train)
        paint(folder / "test", name, test, seed=1)
    return folder
