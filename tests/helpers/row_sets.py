"""Small tables and series that can be learned: files of them, and the words of a run on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

#: sizes with which a run on 60 rows is done in a second
QUICK = (
    "federation.sites=3 partition.alpha=5 partition.min_size=5 model.width=8 feddm.iterations=2 "
    "feddm.image_lr=0.1 feddm.ipc=2 real.ipc=2 image_training.steps=3 fedavg.epochs=1 data.send_originals=on "
    "fedsynth.rate=2 fedsynth.iterations=2 federation.max_update=0"
)


def table(path: Path, n: int = 60) -> str:
    """Write a table of three classes and return the words that name it: values from 1 to 1,000."""
    rng = np.random.default_rng(0)
    kinds = np.arange(n) % 3
    rows = [
        f"{'abc'[kind]},{1 + kind + rng.uniform():.6f},{1 + 499 * rng.uniform():.6f},{kind * 400 + rng.uniform():.6f}"
        for kind in kinds
    ]
    path.write_text("\n".join(["kind,small,wide,=large", *rows]) + "\n", encoding="utf-8")
    return f"data.file={path} data.label=kind data.scale=minmax data.low=0 data.high=5,500,1000"


def waves(path: Path, n: int = 60) -> str:
    """Write series of two channels and three classes and return the words that name them."""
    rng = np.random.default_rng(0)
    kinds, steps = np.arange(n) % 3, np.linspace(0, 1, 16)
    base = np.stack([np.sin(2 * np.pi * (1 + kind) * steps + rng.uniform()) for kind in kinds])
    np.savez(path, x_train=np.stack([base, 3 - base], 1), y_train=np.array(list("abc"))[kinds])
    return f"data.file={path} data.kind=series model.depth=2"
