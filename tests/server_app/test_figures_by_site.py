"""What the sites make of a round's weights: whose figure is whose, and which of them count."""

from __future__ import annotations

import logging
import math
import re
from typing import Any

import pytest
from documents import written
from federation import TamperedGrid, numbers, run
from flwr.app import Message
from small import Small

import client_app.fedavg
from nectar.records.record import RunRecord
from strategies.exchange.lengths import absurd_losses

pytestmark = pytest.mark.promise(
    "Absurd figures, and the roll call",
    "A site's evaluation counts the images it said it holds out, with a possible loss",
)

AT_SITES = "evaluation.on=sites data.site_holdout=0.2"

#: what partition-1 makes of the loss and the count that it found, and what is said to that
LIES = {
    "a billion images": (lambda loss, n: (loss, 10**9), "num-examples is 1000000000 where the"),
    "one image more": (lambda loss, n: (loss, n + 1), "where the roll call said"),
    "an implausible loss": (lambda loss, n: (1e11, n), r"its loss is 1e\+11, more than 100 times"),
    "a loss below 0": (lambda loss, n: (-1.0, n), "lacks a loss of 0 or more"),
    "an infinite loss": (lambda loss, n: (math.inf, n), "the metric 'loss' is inf"),
}


@pytest.mark.extended
@pytest.mark.parametrize("what", LIES)
def test_a_figure_that_cannot_be_is_left_out_and_named(
    small: Small, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Round 1's come with round 2's replies, those of the last round in messages of their own."""
    honest = numbers(run(small(method="fedavg", rounds=2, set=AT_SITES)))
    judge, (lie, reason) = client_app.fedavg.FedAvgClient.evaluate, LIES[what]

    def lying(self: Any, parameters: Any, config: Any) -> Any:
        loss, examples, figures = judge(self, parameters, config)
        told = lie(loss, examples) if self.site == "partition-1" else (loss, examples)
        return *told, figures

    monkeypatch.setattr(client_app.fedavg.FedAvgClient, "evaluate", lying)
    record = run(small(method="fedavg", rounds=2, set=AT_SITES))
    for line, true in list(zip(numbers(record), honest, strict=True))[1:]:
        assert list(line["unevaluated"]) == ["partition-1"]
        assert re.search(reason, line["unevaluated"]["partition-1"])
        others = {s: f for s, f in true["evaluated"].items() if s != "partition-1"}
        assert line["evaluated"] == others
        assert line["sites"]["loss"] == pytest.approx(_mean(others, "loss"))


def _mean(evaluated: dict[str, Any], figure: str) -> float:
    total = sum(row["examples"] for row in evaluated.values())
    return float(sum(row["examples"] * row[figure] for row in evaluated.values()) / total)


@pytest.mark.extended
def test_the_record_has_every_sites_figures_and_the_report_shows_the_last(small: Small) -> None:
    record = run(small(method="fedavg", rounds=2, set=AT_SITES))
    first, *judged = record.metrics()
    assert first["evaluated"] == {}
    for line in judged:
        assert list(line["evaluated"]) == ["partition-0", "partition-1", "partition-2"]
        for figure in ("accuracy", "loss"):
            assert line["sites"][figure] == pytest.approx(_mean(line["evaluated"], figure))
    RunRecord.open(record.directory).rounds  # noqa: B018 - readers take the line as it is
    page = written(record)
    assert "At the sites after round 2" in page.text
    assert f"{judged[-1]['evaluated']['partition-2']['loss']:.4f}" in page.text


@pytest.mark.extended
def test_without_an_evaluation_at_the_sites_there_are_no_figures(small: Small) -> None:
    record = run(small(method="fedavg", rounds=1))
    assert record.metrics()[1]["evaluated"] == {}
    assert "At the sites after" not in written(record).text


def test_the_bound_of_a_loss_is_wide_and_spares_a_lone_site_and_a_diverged_run() -> None:
    def absurd(*losses: float) -> list[str]:
        return [*absurd_losses(dict(zip("abc", losses, strict=False)), classes=10)]

    assert absurd(0.01, 2.0, 200.0) == []
    assert absurd(0.01, 1e11) == ["b"]
    assert absurd(1.0, 1.0, 300.0) == ["c"]
    assert absurd(1e11) == []
    assert absurd(1e8, 2e8, 5e8) == []


# ---- figures of the training that not all send -----------------------------------------------------------


def without(*names: str, **more: float) -> Any:
    """Return a tamper whose site leaves figures out and sends others besides."""

    def tamper(instruction: Message, reply: Message) -> Message:
        figures = next(iter(reply.content.metric_records.values()))
        for name in names:
            del figures[name]
        figures.update(more)
        return reply

    return tamper


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "topk"])
def test_one_accepted_reply_without_a_figure_takes_it_from_nobody(
    small: Small, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    """The mean and the median are over the others, and the line and the log say over how many."""
    caplog.set_level(logging.INFO, "flwr")
    asked = small(method=method, rounds=1)
    record = run(asked, TamperedGrid, tampers={1: without("train-loss", boast=1.0)})
    line = record.metrics()[1]
    assert line["accepted"] == ["partition-0", "partition-1", "partition-2"]
    own = [line["devices"][site]["train-loss"] for site in ("partition-0", "partition-2")]
    assert line["train"]["train-loss"] == pytest.approx(sum(own) / 2)
    assert line["train_median"]["train-loss"] == pytest.approx(sum(own) / 2)
    assert line["train_sites"] == {"train-loss": 2}
    assert "3 of 3 sites (train-loss of 2)," in caplog.text
    assert "boast" not in line["train"], "nor does a minority put one in"


def test_where_all_send_a_figure_nothing_is_said(
    small: Small, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flwr")
    line = run(small(method="fedavg", rounds=1)).metrics()[1]
    assert set(line["train"]) == set(line["train_median"]) >= {"train-loss"}
    assert "train_sites" not in line
    assert "3 of 3 sites," in caplog.text
