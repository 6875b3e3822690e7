"""A run that diverges loses no good checkpoint by it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from federation import resumed, run
from small import Small

import server_app.app
import strategies.fedavg
from common.config.loading import load
from common.errors import FederationError
from common.wire.weights import Weights
from nectar.arguments import parse_arguments
from server_app.checkpoint import Checkpoint
from server_app.record import Record

pytestmark = pytest.mark.promise(
    "Absurd figures, and the roll call",
    "Weights that are not finite touch no checkpoint, and stop the run",
)


def diverging(monkeypatch: pytest.MonkeyPatch, *rounds: int) -> None:
    """Let the test loss be NaN after ``rounds``, with weights that are finite."""
    made = server_app.app.server_evaluator

    def judge_of(run: Any) -> Any:
        judge, asked = made(run), iter(range(1000))

        def judge_or_not(*models: Any) -> Any:
            judged = judge(*models)
            diverged = replace(judged, test=replace(judged.test, loss=math.nan))
            return diverged if next(asked) in rounds else judged

        return judge_or_not

    monkeypatch.setattr(server_app.app, "server_evaluator", judge_of)


def same(one: Checkpoint, other: Checkpoint) -> bool:
    return all(torch.equal(one.weights[name], other.weights[name]) for name in other.weights)


@pytest.mark.extended
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
    line = f"nectar run resume={record.directory}"
    assert f"all up to round 1 is safe in it, and `{line}` continues" in str(error.value)
    assert "needs a lower learning rate (fedavg.lr from 0.3 to 0.1)" in str(error.value)
    assert same(Checkpoint.load(record.last), Checkpoint.load(good.last))
    assert [line["round"] for line in record.metrics()] == [0, 1]
    outcome = json.loads((record.directory / "provenance.json").read_text())["outcome"]
    assert outcome == f"failed: {error.value}"
    assert len(resumed(record).metrics()) == 4


@pytest.mark.extended
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
    resumed(record, 4)
    assert Checkpoint.load(record.finite).server_round == 1


def test_a_round_of_replies_that_are_not_numbers_names_the_learning_rates(small: Small) -> None:
    words = "fedprox.lr=1e30 fedprox.server_lr=0.5"
    with pytest.raises(
        FederationError, match=r"0 valid replies .* lower a learning rate \((.*)\)"
    ) as message:
        run(small(method="fedprox", rounds=1, set=words))
    assert str(message.value).endswith(
        "(fedprox.lr from 1e+30 to 3e+29, fedprox.server_lr from 0.5 to 0.2)"
    )


@pytest.mark.extended
def test_a_run_that_learns_nothing_has_a_line(
    small: Small, caplog: pytest.LogCaptureFixture
) -> None:
    run(small(method="fedavg", rounds=2, set="fedavg.lr=0.1"))
    assert "learned nothing" not in caplog.text
    record = run(small(method="fedavg", rounds=2, set="fedavg.lr=30"))
    first, *_, last = (line["test"] for line in record.metrics())
    assert last["loss"] > first["loss"]
    assert (
        f"the run has learned nothing: after round 2 the test loss is {last['loss']:.4f}, before training it was "
        f"{first['loss']:.4f}"
    ) in caplog.text
    assert caplog.text.count("try a lower learning rate (fedavg.lr from 30 to 10)") == 1


@pytest.mark.extended
def test_a_run_that_is_interrupted_says_what_is_safe_and_how_it_goes_on(
    small: Small, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    update = strategies.fedavg.FedAvg.update

    def interrupted(self: Any, server_round: int, weights: Weights, uploads: Any) -> Weights:
        if server_round == 2:
            raise KeyboardInterrupt
        return update(self, server_round, weights, uploads)

    monkeypatch.setattr(strategies.fedavg.FedAvg, "update", interrupted)
    for typed, command in (("", "run"), ("nectar simulate fedavg", "simulate")):
        config = small(method="fedavg", rounds=3) | {"typed": typed}
        with pytest.raises(KeyboardInterrupt):
            run(config)
        newest = max(Path(config["output-dir"]).iterdir(), key=lambda path: path.stat().st_ctime)
        line = f"nectar {command} resume={newest}"
        assert (
            f"interrupted: all up to round 1 is safe in it, and `{line}` continues" in caplog.text
        )


@pytest.mark.parametrize(
    ("words", "rates"),
    [
        ("fedavg fedavg.lr=0.1", "fedavg.lr from 0.1 to 0.03"),
        (
            "feddm images.folder=/x images.classes=a,b image_training.lr=0.03",
            "image_training.lr from 0.03 to 0.01, feddm.image_lr from 10 to 3",
        ),
        (
            "feddm feddm.global_models=mlp",
            "image_training.lr from 0.05 to 0.02, feddm.global_lr from 0.01 to 0.003, feddm.image_lr from 10 to 3",
        ),
        (
            "fedavg fedavg.server_lr=0.5",
            "fedavg.lr from 0.3 to 0.1, fedavg.server_lr from 0.5 to 0.2",
        ),
    ],
)
def test_rates_are_named_with_what_they_are_lowered_to_and_typed_so(words: str, rates: str) -> None:
    config = load(dict(parse_arguments(words.split())))
    assert config.learning_rates == rates
    lower = {one.partition(" from ")[0]: one.rpartition(" ")[2] for one in rates.split(", ")}
    kept = [word for word in words.split() if word.partition("=")[0] not in lower]
    typed = [f"{key}={value}" for key, value in lower.items()]
    lowered = load(dict(parse_arguments([*kept, *typed]))).learning_rates
    assert [one.partition(" to ")[0] for one in lowered.split(", ")] == [
        f"{key} from {value}" for key, value in lower.items()
    ]
