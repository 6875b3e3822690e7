"""FedDM's defaults on a small set of one's own, of which hardly anything can be learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nectar


@pytest.mark.extended
@pytest.mark.parametrize("classes", [3, 5])
def test_defaults_do_not_learn_noise_by_heart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, classes: int
) -> None:
    """With image_training.lr=0.03 the test loss of three classes rose from 1.23 to 2.15 in two rounds."""
    monkeypatch.setenv("NECTAR_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("NECTAR_DATA", str(tmp_path / "data"))
    rng = np.random.default_rng(0)
    planes = rng.normal(size=(classes, 16, 16))
    arrays = {}
    for part, each in (("train", 30), ("test", 60)):
        labels = np.repeat(np.arange(classes), each)
        pixels = 127 + 6 * planes[labels] + 40 * rng.normal(size=(len(labels), 16, 16))
        arrays |= {f"{part}_images": pixels.clip(0, 255).astype(np.uint8), f"{part}_labels": labels}
    np.savez(tmp_path / "faint.npz", **arrays)
    words: dict[str, Any] = {"data.file": str(tmp_path / "faint.npz"), "feddm.iterations": 20}
    words |= {"federation.sites": 2, "compute.workers": 1}
    run = nectar.run("feddm", rounds=2, **words)
    before, *_, after = (line["test"]["loss"] for line in run.rounds)
    assert after < before + 0.1
