"""The larger models in whole runs: matched by FedDM, trained by FedAvg."""

from __future__ import annotations

import math

import pytest
from federation import run
from small import Small

FEW = "data.images=60 feddm.real_batch=4 feddm.iterations=1 image_training.epochs=1 evaluation.batch=400"


@pytest.mark.parametrize(
    "words",
    [
        "model.name=logistic",
        "model.name=vit model.depth=1",
        "model.name=resnet18 model.norm=group",
        "model.name=vgg11",
    ],
)
def test_a_round_of_feddm(small: Small, words: str) -> None:
    lines = run(small(method="feddm", rounds=1, set=f"{FEW} {words}")).metrics()
    first, last = (line["test"]["loss"] for line in lines)
    assert math.isfinite(last)
    assert last != first


@pytest.mark.parametrize(
    ("words", "above"),
    [
        ("model.name=logistic fedavg.lr=0.1", 0.85),
        (
            "model.name=vit model.width=32 model.depth=1 fedavg.local_optimizer=adam fedavg.lr=0.003",
            0.4,
        ),
    ],
)
def test_fedavg_learns_digits(small: Small, words: str, above: float) -> None:
    words += " fedavg.epochs=3 fedavg.batch=16"
    lines = run(small(method="fedavg", rounds=2, set=words)).metrics()
    assert lines[-1]["test"]["accuracy"] > above
