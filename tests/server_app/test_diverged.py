"""A run that diverges loses no good checkpoint by it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from federation import run

import server_app.app
import strategies.fedavg
from common.errors import FederationError
from common.wire import Weights
from nectar.resume import with_recorded
from server_app.checkpoint import Checkpoint
from server_app.record import Record

Small = Callable[..., dict[str, Any]]


def diverging(monkeypatch: pytest.MonkeyPatch, *rounds: int) -> None:
    """Let the test loss be NaN after ``rounds``, with weights that are finite."""
    made = server_app.app.server_judge

    def judge_of(run: Any) -> Any:
        judge, asked = made(run), iter(range(1000))

        def judge_or_not(*models: Any) -> Any:
            judged = judge(*models)
            diverged = replace(judged, test=replace(judged.test, loss=math.nan))
            return diverged if next(asked) in rounds else judged

        return judge_or_not

    monkeypatch.setattr(server_app.app, "server_judge", judge_of)


def same(one: Checkpoint, other: Checkpoint) -> bool:
    return all(torch.equal(one.weights[name], other.weights[name]) for name in other.weights)


def test_weights_that_are_not_finite_end_the_run_and_touch_no_checkpoint(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = strategies.fedavg.FedAvg.update

    def endless(self: Any, server_round: int, weights: Weights, uploads: Any) -> Weights:
        new = update(self, server_round, weights, uploads)
        if server_round == 2:
            new = Weights({k: t * float("inf") for k, t in new.tensors.items()}, new.codec)
        return new

    good = run(small(method="fedavg", rounds=1))
    config = small(method="fedavg", rounds=3) | {"output-dir": str(good.directory / "b")}
    with monkeypatch.context() as patched:
        patched.setattr(strategies.fedavg.FedAvg, "update", endless)
        with pytest.raises(FederationError) as error:
            run(config)
    (record,) = map(Record, Path(config["output-dir"]).iterdir())
    assert "round 2's update made the weight" in str(error.value)
    assert f"all up to round 1 is safe in it, and resume={record.directory} goes on" in str(
        error.value
    )
    assert same(Checkpoint.load(record.last), Checkpoint.load(good.last))
    assert [line["round"] for line in record.metrics()] == [0, 1]
    outcome = json.loads((record.directory / "provenance.json").read_text())["outcome"]
    assert outcome == f"failed: {error.value}"
    assert len(run(with_recorded({"resume": str(record.directory)})).metrics()) == 4


def test_a_test_loss_that_is_not_finite_leaves_the_checkpoint_before_it(
    small: Small, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The run goes on and its lines are all there; the first of several such rounds keeps, also behind a resume."""
    good = run(small(method="fedavg", rounds=1))
    assert not good.finite.exists()
    diverging(monkeypatch, 2, 3)
    record = run(small(method="fedavg", rounds=3))
    assert same(Checkpoint.load(record.finite), Checkpoint.load(good.last))
    assert Checkpoint.load(record.last).server_round == 3
    assert [line["round"] for line in record.metrics()] == [0, 1, 2, 3]
    assert f"is kept in {record.finite}" in caplog.text
    diverging(monkeypatch, 0, 1)
    run(with_recorded({"resume": str(record.directory), "rounds": 4}))
    assert Checkpoint.load(record.finite).server_round == 1
