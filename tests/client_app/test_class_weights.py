"""`class_weights=balanced` with a rare class: no step is longer for it, and no training is undone."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from federation import TamperedGrid, run
from small import Small
from tampering import away_from_start

from client_app import local_training
from common.learning.task import Classification

pytestmark = pytest.mark.promise(
    "Absurd figures, and the roll call",
    "A step under `class_weights` is no longer than its longest example's",
)

ONE_IN = (20, 100, 1000)


def objective(labels: torch.Tensor) -> Any:
    """Return what local training minimises under class_weights=balanced."""
    weights = local_training.balanced(labels)
    return local_training.weighted_in_batch(Classification(2), weights)


@pytest.mark.parametrize("batch", [8, 32])
@pytest.mark.parametrize("one_in", ONE_IN)
def test_a_batch_is_torchs_weighted_cross_entropy(one_in: int, batch: int) -> None:
    """The loss is a mean: no batch steps further than the furthest of its examples would alone."""
    labels = (torch.arange(2000) % one_in == 0).long()
    x = torch.randn(2000, 2, generator=torch.Generator().manual_seed(0))
    of_classes = 1 / torch.bincount(labels).float()
    for positions in torch.split(torch.arange(2000), batch):
        z = x[positions].requires_grad_()
        loss = objective(labels)(lambda part: part, z, labels[positions], positions)
        expected = F.cross_entropy(z, labels[positions], weight=of_classes)
        assert float(loss) == pytest.approx(float(expected), rel=1e-5)
        loss.backward()
        assert z.grad is not None
        alone = (z.softmax(1) - F.one_hot(labels[positions], 2)).norm(dim=1)
        assert float(z.grad.norm(dim=1).sum()) <= float(alone.max()) * (1 + 1e-5)


def table(place: Path, one_in: int, rows: int, seed: int) -> Path:
    """Write rows of two classes that lie apart, one of them rare, and as many of both to be judged by."""
    rng = np.random.default_rng(seed)

    def drawn(n: int, rare: int) -> tuple[Any, Any]:
        labels = (rng.permutation(n) < rare).astype(np.int64)
        shift = np.array([2.0] * 4 + [0.0] * 4)
        return (rng.normal(size=(n, 8)) + labels[:, None] * shift).astype(np.float32), labels

    (x, y), (tx, ty) = drawn(rows, rows // one_in), drawn(2000, 1000)
    np.savez(place, train_images=x, train_labels=y, test_images=tx, test_labels=ty)
    return place


@pytest.mark.sweep
@pytest.mark.parametrize("batch", [8, 32])
def test_a_rare_class_undoes_no_training(tmp_path: Path, batch: int) -> None:
    """One in 100, at five sites alike: ranked no worse than without weights, and nobody is refused or shortened."""
    file = table(tmp_path / "rows.npz", 100, 3000, 0)
    found = {}
    for weights in ("none", "balanced"):
        words = (
            f"data.file={file} data.kind=table data.scale=none data.validation=0 federation.sites=5 "
            f"partition.kind=iid model.name=mlp model.width=16 fedavg.epochs=1 fedavg.batch={batch} fedavg.lr=0.1 "
            f"fedavg.class_weights={weights}"
        )
        keys = {"output-dir": str(tmp_path / "runs"), "data-dir": str(tmp_path / "data")}
        lines = run({"method": "fedavg", "rounds": 4, "set": words, **keys}).metrics()
        assert not any(line["rejected"] or line.get("shortened") for line in lines)
        found[weights] = lines[-1]["test"]
    assert found["balanced"]["auc"] >= found["none"]["auc"] - 0.01
    assert found["balanced"]["balanced"] > found["none"]["balanced"]
    assert found["balanced"]["balanced"] > 0.9


@pytest.mark.parametrize(("factor", "what"), [(30.0, "rejected"), (8.5, "shortened")])
def test_a_length_that_is_refused_or_shortened_names_them(
    small: Small, caplog: pytest.LogCaptureFixture, factor: float, what: str
) -> None:
    sentence = "class_weights=balanced has a site take longer steps"
    for weights in ("none", "balanced"):
        caplog.clear()
        words = f"federation.sites=5 partition.kind=iid fedavg.class_weights={weights}"
        tampers = {1: away_from_start(factor)}
        with caplog.at_level(logging.WARNING, "flwr"):
            line = run(small(method="fedavg", rounds=1, set=words), TamperedGrid, tampers=tampers)
        assert "partition-1" in line.metrics()[1][what]
        assert (sentence in caplog.text) == (weights == "balanced")
        reasons = line.metrics()[1]["rejected"].values()
        assert all((sentence in why) == (weights == "balanced") for why in reasons)
