"""A language model learned from texts of natural clients, from LEAF's files to the report."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from federation import run
from small import Small

from common.config.loading import load as load_config
from common.division import Division
from common.errors import ConfigError, FederationError
from nectar.cli import main
from nectar.export.bundle import export
from nectar.records.record import RunRecord
from server_app.checkpoint import Checkpoint
from strategies.fedavg import FedAvg


def by_hand(weights: dict[str, torch.Tensor], config: dict[str, Any]) -> tuple[float, float, int]:
    """Return accuracy, loss and places of the test part, text by text and place by place."""
    setup = Division(load_config(config)).run
    model = setup.build_model()
    model.load_state_dict(weights)
    test = Division(setup.config).dataset.test
    right, loss, places = 0, 0.0, 0
    for tokens, targets in zip(test.images, test.labels, strict=True):
        with torch.no_grad():
            (scores,) = model(torch.from_numpy(np.array(tokens, dtype=np.int64))[None])
        for logits, target in zip(scores, targets.tolist(), strict=True):
            if target:
                loss -= float(logits.log_softmax(0)[target])
                right += target == int(logits.argmax()) != 1
                places += 1
    return right / places, loss / places, places


def test_a_language_model_is_learned_from_the_texts_of_natural_clients(
    reddit_config: Small,
) -> None:
    config = reddit_config()
    record = run(config)
    lines = record.metrics()
    losses = [line["test"]["loss"] for line in lines]
    assert losses[0] == pytest.approx(np.log(2000), rel=0.01)
    assert losses[2] < losses[1] < losses[0]
    weights = dict(Checkpoint.load(record.last).weights)
    accuracy, loss, places = by_hand(weights, config)
    last = lines[-1]["test"]
    assert last["examples"] == places
    assert last["accuracy"] == accuracy > 0
    assert last["loss"] == pytest.approx(loss, rel=1e-5)
    assert last["per_class"] == []


def test_each_client_is_one_user_of_whom_the_server_held_back_its_share(
    reddit_config: Small,
) -> None:
    """A quarter of 6, 10, 20 and 4 texts, by largest remainders, ties to the lower: 2, 2, 5, 1."""
    content = json.loads(
        (run(reddit_config()).directory / "partition.json").read_text(encoding="utf-8")
    )
    held = {name: row["examples"] for name, row in content["sites"].items()}
    assert sorted(held.values()) == sorted([6 - 2, 10 - 2, 20 - 5, 4 - 1])
    assert content["classes"] == []
    assert content["simulated"] is True
    assert all(list(row) == ["examples"] for row in content["sites"].values())


@pytest.mark.extended
def test_a_language_model_is_judged_on_the_texts_that_sites_hold_out(reddit_config: Small) -> None:
    record = run(reddit_config("evaluation.on=sites data.site_holdout=0.5"))
    last = record.metrics()[-1]
    assert last["test"] is None
    assert last["sites"]["loss"] < np.log(2000)
    assert 0 < last["sites"]["accuracy"] <= 1


@pytest.mark.extended
def test_a_language_model_is_reported_without_a_table_of_its_vocabulary(
    reddit_config: Small,
) -> None:
    record = run(reddit_config())
    assert main(["report", str(record.directory)]) == 0
    page = (record.directory / "report.html").read_text(encoding="utf-8")
    assert "The data set has no classes: it is text." in page
    assert "Sequences by site" in page
    assert "number of sequences was reported" in page
    assert "This was a simulation" in page
    assert "Images by site and class" not in page
    assert "Test accuracy by class" not in page
    assert len(page) < 300_000


def test_a_language_model_is_not_exported(reddit_config: Small) -> None:
    record = run(reddit_config())
    with pytest.raises(ConfigError, match="language model of reddit2k, which cannot be exported"):
        export(RunRecord.open(record.directory))
    assert not (record.directory / "export").exists()


def test_a_device_says_that_text_has_no_classes_to_count(
    reddit_config: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FedAvg, "needs_class_counts", True)
    with pytest.raises(FederationError, match="reddit2k has no classes to count"):
        run(reddit_config())
