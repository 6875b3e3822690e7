"""``evaluation.patience``: a run ends where nothing better comes, and its best round is the result."""

from __future__ import annotations

import json

import pytest
from federation import resumed, run
from small import Small

from nectar.cli import main
from nectar.comparison.frame import frames
from nectar.records.record import RunRecord
from strategies.federated import Federated

STILL = "fedavg.lr=1e-12 federation.sites=2 data.images=100"
"""No step moves a weight far enough to change a prediction: round 1 stays the best."""


@pytest.mark.parametrize(("where", "ends"), [("server", 3), ("sites", 4)])
def test_a_run_that_learns_nothing_ends_and_its_first_round_is_the_result(
    where: str, ends: int, small: Small
) -> None:
    """The sites judge a round as they get the next one's instructions: they are a round later."""
    words = f"{STILL} evaluation.patience=2 data.validation_at={where}"
    record = RunRecord.open(run(small(method="fedavg", rounds=9, set=words)).directory)
    assert record.completed
    assert record.done == ends
    assert record.result_round == 1
    by_run, *_ = frames({"a": {0: record}}, None)
    assert by_run["completed"].all()
    assert by_run["final"].tolist() == [record.rounds[1]["test"]["accuracy"]]


def test_only_evaluated_rounds_count_and_the_last_one_is_evaluated(small: Small) -> None:
    words = f"{STILL} evaluation.patience=1 evaluation.every=3"
    record = RunRecord.open(run(small(method="fedavg", rounds=20, set=words)).directory)
    assert record.done == 6
    assert record.rounds[-1]["validation"]


def test_a_round_that_cannot_learn_does_not_count(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Round 1 is the best; 2 and 3 cannot learn, as where Fedssyn's images are made; 4 and 5 bring nothing better."""
    learning = iter([False, False, True, True])
    monkeypatch.setattr(Federated, "is_learning", property(lambda self: next(learning)))
    words = f"{STILL} evaluation.patience=2"
    record = RunRecord.open(run(small(method="fedavg", rounds=9, set=words)).directory)
    assert record.done == 5


@pytest.mark.extended
def test_a_run_that_gets_better_runs_all_its_rounds_and_names_its_best(small: Small) -> None:
    words = "federation.sites=2 data.images=300 fedavg.epochs=2 fedavg.lr=0.1 evaluation.patience=3"
    record = RunRecord.open(run(small(method="fedavg", rounds=3, set=words)).directory)
    assert record.done == 3
    reached = {
        line["round"]: line["validation"]["accuracy"] for line in record.rounds if line["round"]
    }
    assert record.result_round == max(reached, key=lambda at: (reached[at], -at))
    final = record.rounds[record.result_round]["test"]["accuracy"]
    assert frames({"a": {0: record}}, None)[0]["final"].tolist() == [final]


@pytest.mark.extended
def test_what_is_exported_is_the_best_round_and_a_resumed_run_counts_on(
    small: Small, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"{STILL} evaluation.patience=2"
    record = run(small(method="fedavg", rounds=2, set=words))
    assert RunRecord.open(record.directory).done == 2  # one evaluation without a better one
    again = resumed(record, rounds=8)
    assert RunRecord.open(again.directory).done == 3
    folder = record.directory.parent.parent / "model"
    assert main(["export", str(record.directory), "--output", str(folder)]) == 0
    assert json.loads((folder / "model.json").read_text())["run"]["round"] == 1
    capsys.readouterr()
