"""`evaluation.measure`: what a run's line, record, report and tables say by it, against scikit-learn's own figures."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from documents import check, written
from federation import numbers, resumed, run
from sklearn.metrics import (
    balanced_accuracy_score,
    confusion_matrix,
    f1_score,
    log_loss,
    roc_auc_score,
)
from small import SMALL, Small

import client_app.fedavg
import nectar
from common.config.text import parse_set
from common.division import Division
from common.errors import ConfigError
from common.samples.inputs import Samples, samples
from nectar import cli
from nectar.recorded_run import RecordedRun
from server_app.checkpoint import Checkpoint
from server_app.tracking import figures_of

AT_SITES = "evaluation.on=both data.site_holdout=0.3"


def rare(path: Path) -> str:
    """Write a table of two classes, one twenty times as frequent, and return the words that name it."""
    rng = np.random.default_rng(0)
    kinds = np.arange(630) % 21 == 0
    rows = [f"{'ill' if k else 'well'},{k + rng.normal():.5f},{rng.normal():.5f}" for k in kinds]
    path.write_text("\n".join(["kind,one,two", *rows]) + "\n", encoding="utf-8")
    return f"data.file={path} data.label=kind data.scale=minmax data.low=-6 data.high=6"


def words_of(data: str, folder: Path) -> dict[str, Any]:
    if data == "digits":
        return parse_set(SMALL)
    few = "federation.sites=3 partition.alpha=5 partition.min_size=30 model.width=8 fedavg.epochs=2 fedavg.lr=0.5"
    return parse_set(f"{rare(folder / 'rare.csv')} {few}")


def judged(model: torch.nn.Module, part: Samples, batch: int = 500) -> tuple[Any, Any]:
    """Return outputs as the run has them, in its batches, and labels."""
    with torch.no_grad():
        each = [model.eval()(part.inputs(slice(i, i + batch))) for i in range(0, len(part), batch)]
    return torch.cat(each).double(), part.labels


def require_scikit_learns(figures: dict[str, Any], outputs: Any, labels: Any) -> None:
    """Hold figures of a record against those of scikit-learn."""
    classes, predicted = outputs.shape[1], outputs.argmax(1)
    f1 = f1_score(labels, predicted, average="macro")
    recall = balanced_accuracy_score(labels, predicted)
    scores = outputs.softmax(1)
    if classes == 2:
        scores = outputs - outputs.flip(1)
    present = [c for c in range(classes) if 0 < (labels == c).sum() < len(labels)]
    areas = [roc_auc_score(labels == c, scores[:, c]) for c in present]
    assert figures["f1"] == pytest.approx(f1, abs=1e-9)
    assert figures["balanced"] == pytest.approx(recall, abs=1e-9)
    if "auc" in figures:
        assert figures["auc"] == pytest.approx(np.mean(areas), abs=1e-9)
    assert figures["accuracy"] == pytest.approx(float((predicted == labels).double().mean()))
    if "confusion" in figures:
        expected = confusion_matrix(labels, predicted, labels=range(classes))
        assert figures["confusion"] == expected.tolist()
    probabilities = outputs.softmax(1)
    loss = log_loss(labels, probabilities, labels=range(classes))
    assert figures["loss"] == pytest.approx(loss, rel=1e-4)


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.parametrize("measure", ["auc", "f1"])
@pytest.mark.parametrize("data", ["digits", "table"])
def test_a_runs_figures_are_scikit_learns_at_the_server_and_at_the_sites(
    tmp_path: Path, data: str, measure: str
) -> None:
    words = words_of(data, tmp_path) | parse_set(f"{AT_SITES} evaluation.measure={measure}")
    words |= {"data_dir": tmp_path / "data"} if data == "table" else {}
    asked = {"rounds": 2, "output_dir": tmp_path / "runs", "progress": False}
    found = nectar.run("fedavg", **asked, **words)
    division, line = Division(found.config), found.rounds[-1]
    dataset, info = division.dataset, division.run.info
    require_scikit_learns(line["test"], *judged(found.model, samples(dataset.test, info)))
    held = {
        f"partition-{i}": samples(
            dataset.train, info, division.share(f"partition-{i}", dataset, part)[1]
        )
        for i, part in enumerate(division.partition(found.config.federation.sites))
    }
    each = {site: judged(found.model, held[site]) for site in line["evaluated"]}
    assert len(each) > 0.9 * len(held)
    for site, (outputs, labels) in each.items():
        require_scikit_learns(line["evaluated"][site], outputs, labels)
        ranked = measure == "auc" and len(labels.unique()) > 1
        assert ("auc" in line["evaluated"][site]) == ranked
    every = line["evaluated"].values()
    sites, own = line["sites"], [one[measure] for one in every if measure in one]
    pooled = {key: value for key, value in sites.items() if key != "auc"}
    outputs, labels = (torch.cat(both) for both in zip(*each.values(), strict=True))
    require_scikit_learns(pooled, outputs, labels)
    assert (sites["mean"], sites["deviation"], sites["worst"]) == pytest.approx(
        (np.mean(own), np.std(own), min(own)), abs=1e-12
    )
    assert sites.get("auc") == (sites["mean"] if measure == "auc" else None)


@pytest.mark.extended
def test_the_figures_of_two_classes_say_what_accuracy_hides(tmp_path: Path) -> None:
    """One of 21 is ill: whoever calls all well has an accuracy of 0.95, a balanced one of 0.5."""
    words = words_of("table", tmp_path) | {"fedavg.lr": 0.001, "evaluation.measure": "balanced"}
    asked = {"output_dir": tmp_path / "runs", "data_dir": tmp_path / "data", "progress": False}
    plain = nectar.run("fedavg", rounds=1, **asked, **words)
    test = plain.rounds[-1]["test"]
    assert test["accuracy"] > 0.9
    assert test["balanced"] == pytest.approx(0.5)


# ---- what is unchanged, and what a site tells --------------------------------------------------------


def told_by_sites(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return a list that gets what each site tells of its evaluation."""
    told: list[dict[str, Any]] = []
    judge = client_app.fedavg.FedAvgClient.evaluate

    def listening(self: Any, parameters: Any, config: Any) -> Any:
        found = judge(self, parameters, config)
        told.append({"examples": found[1], "loss": found[0], **found[2]})
        return found

    monkeypatch.setattr(client_app.fedavg.FedAvgClient, "evaluate", listening)
    return told


def test_by_accuracy_a_site_tells_what_it_told_before(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = told_by_sites(monkeypatch)
    record = run(small(method="fedavg", rounds=1, set=AT_SITES))
    assert [set(one) for one in told] == [{"examples", "loss", "accuracy"}] * 3
    line = record.metrics()[-1]
    kept = [set(one) - {"over"} for one in line["evaluated"].values()]  # what the server knows
    assert kept == [{"examples", "accuracy", "loss"}] * 3
    assert "confusion" not in line["sites"]
    own = [one["accuracy"] for one in line["evaluated"].values()]
    assert line["sites"]["worst"] == min(own)


@pytest.mark.extended
def test_a_private_runs_sites_tell_nothing_and_its_server_has_every_figure(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = told_by_sites(monkeypatch)
    private = "privacy.noise_multiplier=1 privacy.counts=public evaluation.measure=auc"
    line = run(small(method="fedavg", rounds=1, set=private)).metrics()[-1]
    assert told == []
    assert (line["evaluated"], line["sites"]) == ({}, None)
    assert 0 < line["test"]["auc"] < 1
    assert sum(map(sum, line["test"]["confusion"])) == 360
    with pytest.raises(ConfigError, match="which the privacy of this run"):
        run(small(method="fedavg", rounds=1, set=f"{private} {AT_SITES}"))


Lie = Callable[[dict[str, Any]], dict[str, Any]]


def counts(change: Callable[[list[int]], Any]) -> Lie:
    return lambda told: told | {"counts": change(list(told["counts"]))}


LIES: dict[str, tuple[Lie, str]] = {
    "no counts": (lambda told: {k: v for k, v in told.items() if k != "counts"}, "its counts"),
    "a number": (counts(lambda own: 3), "its counts"),
    "fractions": (counts(lambda own: [float(n) for n in own]), "its counts"),
    "one example more": (counts(lambda own: [*own[:-1], own[-1] + 1]), "its counts"),
    "below nothing": (counts(lambda own: [*own[:-1], own[-1] + 5, 3, -5]), "its counts"),
    "a place twice": (counts(lambda own: [*own[:-1], own[-1] - 1, own[-2], 1]), "its counts"),
    "a place that is none": (counts(lambda own: [100, *own[1:]]), "its counts"),
    "a place below": (counts(lambda own: [-1, *own[1:]]), "its counts"),
    "no count to a place": (counts(lambda own: [*own, 5]), "its counts"),
    "another accuracy": (lambda told: told | {"accuracy": 1.0}, r"1\.0000 of them right"),
    "no AUC": (lambda told: {k: v for k, v in told.items() if k != "auc"}, "lacks an auc"),
    "an AUC of two": (lambda told: told | {"auc": 2.0}, "lacks an auc"),
}


@pytest.mark.extended
@pytest.mark.parametrize("what", LIES)
def test_figures_that_cannot_be_cost_a_site_its_place_and_the_run_nothing(
    small: Small, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    words = f"{AT_SITES} evaluation.measure=auc"
    honest = numbers(run(small(method="fedavg", rounds=1, set=words)))[-1]
    judge, (lie, reason) = client_app.fedavg.FedAvgClient.evaluate, LIES[what]

    def lying(self: Any, parameters: Any, config: Any) -> Any:
        loss, examples, told = judge(self, parameters, config)
        return loss, examples, lie(told) if self.site == "partition-1" else told

    monkeypatch.setattr(client_app.fedavg.FedAvgClient, "evaluate", lying)
    line = numbers(run(small(method="fedavg", rounds=1, set=words)))[-1]
    assert re.search(reason, line["unevaluated"]["partition-1"])
    assert line["evaluated"] == {s: f for s, f in honest["evaluated"].items() if s != "partition-1"}
    held = sum(one["examples"] for one in line["evaluated"].values())
    assert sum(map(sum, line["sites"]["confusion"])) == held
    assert line["accepted"] == honest["accepted"]


# ---- what it chooses, and who says it ----------------------------------------------------------------


@pytest.mark.extended
def test_it_chooses_the_best_round(small: Small) -> None:
    words = "data.validation_at=sites data.validation=0.2 evaluation.measure=auc fedavg.lr=1"
    whole = run(small(method="fedavg", rounds=4, set=words))
    reached = {line["round"]: line["validation"]["auc"] for line in whole.metrics()[1:]}
    best = Checkpoint.load(whole.best)
    assert best.server_round == max(reached, key=reached.__getitem__)
    assert best.validation_accuracy == reached[best.server_round]


def test_a_site_of_one_class_has_no_auc_and_the_log_says_over_how_many_it_is(
    small: Small, caplog: pytest.LogCaptureFixture
) -> None:
    alone = "partition.kind=by_class partition.classes_per_client=1 federation.sites=10"
    words = f"{AT_SITES} evaluation.measure=auc {alone}"
    with caplog.at_level(logging.INFO, "flwr"):
        line = run(small(method="fedavg", rounds=1, set=words)).metrics()[-1]
    assert not any("auc" in one for one in line["evaluated"].values())
    assert "auc" not in line["sites"]
    assert "at the sites AUC nan (the mean of the sites' own), accuracy " in caplog.text
    assert line["sites"]["f1"] > 0


@pytest.mark.extended
def test_line_report_trackers_and_frame_say_it(
    small: Small, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "flwr"):
        record = run(small(method="fedavg", rounds=2, set=f"{AT_SITES} evaluation.measure=f1"))
    line = record.metrics()[-1]
    test, sites = line["test"], line["sites"]
    worst = min(line["evaluated"], key=lambda site: line["evaluated"][site]["f1"])
    assert f"round 2/2: F1 {test['f1']:.4f}, accuracy {test['accuracy']:.4f}, loss" in caplog.text
    assert (
        f"F1 by site: mean {sites['mean']:.4f}, deviation {sites['deviation']:.4f}, worst "
        f"{sites['worst']:.4f} ({worst})"
    ) in caplog.text
    page = written(record)
    check(page)
    for message in (
        "test F1",
        f"{test['auc']:.4f}",
        "true class by row, predicted by column",
        f"F1 {sites['mean']:.4f} in the mean of sites",
        "Of its held-out images each reported how many of each class were taken for which",
        "precision",
    ):
        assert message in page.text
    tracked = figures_of(line)
    for name in (
        "test/f1",
        "test/balanced",
        "test/auc",
        "sites/mean",
        "sites/deviation",
        "sites/worst",
    ):
        assert name in tracked
    assert not any("partition" in name for name in tracked)
    frame = RecordedRun.open(record.directory).frame()
    assert frame["f1"].iloc[-1] == test["f1"]
    assert frame["site_worst"].iloc[-1] == sites["worst"]


@pytest.mark.extended
def test_a_loss_above_its_untrained_value_is_said_once_and_in_the_report(
    small: Small, caplog: pytest.LogCaptureFixture
) -> None:
    words = "partition.alpha=0.1 model.name=mlp fedavg.lr=3 fedavg.batch=8 federation.max_update=0"
    with caplog.at_level(logging.WARNING, "flwr"):
        record = run(small(method="fedavg", rounds=3, set=words))
    lines = record.metrics()
    above = [line["round"] for line in lines if line["test"]["loss"] > lines[0]["test"]["loss"]]
    assert len(above) > 1
    message = (
        f"round {above[0]}: the test loss is {lines[above[0]]['test']['loss']:.4f}, above the "
    )
    assert caplog.text.count("before training: lower") == 1
    assert message in caplog.text
    assert f"After {len(above)} rounds, round {above[0]} the first, the test loss" in re.sub(
        r"\s+", " ", written(record).text
    )


# ---- side by side ------------------------------------------------------------------------------------


def compared(folder: Path, *words: str) -> int:
    asked = ["compare", *words, "--seeds", "1", "rounds=1", f"output-dir={folder}"]
    return cli.main([*asked, *SMALL.split()])


@pytest.mark.extended
def test_a_comparison_ranks_by_it_and_its_csv_has_every_measure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compared(tmp_path, "fedavg", "evaluation.measure=auc") == 0
    shown = capsys.readouterr().out
    (place,) = tmp_path.glob("compare-*")
    reached = [RecordedRun.open(p).rounds[-1]["test"]["auc"] for p in tmp_path.glob("2*")]
    assert "AUC after round 1, and each seed's." in shown
    assert all(f"{value:.4f}" in shown for value in reached)
    head, *rows = (place / "rounds.csv").read_text().splitlines()
    assert {"accuracy", "f1", "balanced", "auc", "site_mean", "site_worst"} <= {*head.split(",")}
    column = head.split(",").index("auc")
    assert {float(row.split(",")[column]) for row in rows[1::2]} == set(reached)
    assert (place / "auc-rounds.svg").is_file()


@pytest.mark.extended
def test_runs_of_different_measures_go_into_no_column_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], small: Small
) -> None:
    assert compared(tmp_path, "a=fedavg", "b=fedavg:evaluation.measure=f1") != 0
    assert "cannot share a column" in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.glob("2*")) == []
    asked = ["table=digits", "evaluation.measure=f1", "--seeds", "1", f"output-dir={tmp_path}"]
    assert cli.main(["compare", *asked]) != 0
    assert "table=digits compares accuracies: leave" in capsys.readouterr().err
    records = [
        run(small(method="fedavg", rounds=1, set=f"evaluation.measure={m}")) for m in ("f1", "auc")
    ]
    page = written(*records)
    check(page)
    assert "the runs are judged by F1 and AUC, which cannot share a column" in page.text
    assert "seed: accuracy" in page.text
    assert math.isfinite(records[0].metrics()[-1]["test"]["accuracy"])


@pytest.mark.extended
def test_it_is_not_said_of_a_run_that_trains_by_another_loss(
    small: Small, caplog: pytest.LogCaptureFixture
) -> None:
    words = "partition.alpha=0.1 model.name=mlp fedavg.lr=3 fedavg.batch=8 federation.max_update=0"
    with caplog.at_level(logging.WARNING, "flwr"):
        record = run(small(method="fedavg", rounds=1, set=f"{words} fedavg.class_weights=balanced"))
        resumed(record, rounds=2)
    first, *others = record.metrics()
    assert any(line["test"]["loss"] > first["test"]["loss"] for line in others)
    assert "before training" not in caplog.text
    assert "the test loss was above" not in " ".join(written(record).text.split())
