"""`data.validation_at=sites`: each site holds its part of the validation split and judges it, and that counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import run
from small import SMALL, Small

import nectar
from common.config.text import parse_set
from common.data.division.stratify import Indices
from common.division import Division
from common.errors import ConfigError
from common.learning.training import evaluate
from common.samples.inputs import samples
from nectar import cli
from nectar.recorded_run import RecordedRun
from server_app.checkpoint import Checkpoint

SETTINGS: dict[str, Any] = parse_set(SMALL)
AT_SITES: dict[str, Any] = SETTINGS | {"data.validation_at": "sites", "data.validation": 0.2}


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    output = tmp_path_factory.mktemp("runs")
    return nectar.run("fedavg", rounds=3, output_dir=output, progress=False, **AT_SITES)


def parts(division: Division) -> list[tuple[Indices, Indices]]:
    """Return each site's positions to learn from, and those it holds out."""
    dataset = division.dataset
    return [
        division.share(f"partition-{i}", dataset, part)
        for i, part in enumerate(division.partition(3))
    ]


def test_the_server_has_no_labelled_image_and_the_sites_none_twice(judged: RecordedRun) -> None:
    division = Division(judged.config)
    assert len(division.validation) == 0
    every = np.concatenate([each for pair in parts(division) for each in pair])
    assert sorted(every) == list(range(1437)), "disjoint, and all of the training images"
    for kept, held in parts(division):
        assert len(held) == round(0.2 * (len(kept) + len(held)))


def test_its_figure_is_the_one_over_all_that_the_sites_hold(judged: RecordedRun) -> None:
    """By hand: each image counts the same, so that the mean by counts is one evaluation of the union."""
    division = Division(judged.config)
    held = np.concatenate([held for _, held in parts(division)])
    made = division.run
    by_hand = evaluate(
        judged.model, samples(division.dataset.train, made.info, held), made.task, 256
    )
    line = judged.rounds[-1]
    assert line["validation"]["accuracy"] == pytest.approx(by_hand.accuracy)
    assert line["validation"]["loss"] == pytest.approx(by_hand.loss, rel=1e-5)
    assert line["validation"]["examples"] == len(held)
    assert {site: each["examples"] for site, each in line["evaluated"].items()} == {
        f"partition-{i}": len(held) for i, (_, held) in enumerate(parts(division))
    }
    assert line["sites"] is None
    assert "best on validation" in judged.report().read_text()


def test_it_chooses_the_best_round(judged: RecordedRun) -> None:
    reached = {line["round"]: line["validation"]["accuracy"] for line in judged.rounds[1:]}
    best = Checkpoint.load(judged.directory / "checkpoint" / "best.safetensors")
    assert best.server_round == max(reached, key=reached.__getitem__)
    assert best.validation_accuracy == reached[best.server_round]


def test_runs_with_the_split_at_the_server_have_the_figures_that_they_had(small: Small) -> None:
    """The draws of the server's share and of a site's hold-out; the figures are of d5d10a5d, before the setting."""
    words = "data.site_holdout=0.2 evaluation.on=both"
    record = run(small(method="fedavg", rounds=1, set=words))
    line = record.metrics()[-1]
    assert line["validation"]["examples"] == 144
    assert sum(each["examples"] for each in line["evaluated"].values()) == 259
    reached = [line[part]["accuracy"] for part in ("test", "validation", "sites")]
    assert reached == pytest.approx([64 / 360, 22 / 144, 53 / 259])


@pytest.mark.extended
@pytest.mark.parametrize("method", ["local", "fedssyn"])
def test_sites_with_models_of_their_own_judge_those(tmp_path: Path, method: str) -> None:
    """`local`'s, alone or inside Fedssyn: by hand, each site's model on what it holds out."""
    more = {"fedssyn.inner": "local", "fedssyn.source": "none", "fedavg.lr": 0.1}
    run = nectar.run(method, rounds=2, output_dir=tmp_path, progress=False, **AT_SITES | more)
    division, line = Division(run.config), run.rounds[-1]
    made = division.run
    for (site, model), (_, held) in zip(run.models.items(), parts(division), strict=True):
        own = samples(division.dataset.train, made.info, held)
        by_hand = evaluate(model, own, made.task, 256)
        assert line["evaluated"][site]["accuracy"] == pytest.approx(by_hand.accuracy)


@pytest.mark.extended
def test_a_model_that_the_server_learns_goes_to_the_sites_to_be_judged(tmp_path: Path) -> None:
    """FedDGM's headline is not what its sites train; one of another form cannot be judged there."""
    short = {
        "feddgm.epochs": 1, "feddgm.ipc": 1, "feddgm.iterations": 1, "feddgm.inner_epochs": 1,
        "feddgm.global_epochs": 3, "feddgm.surrogate_epochs": 1,
    }  # fmt: skip
    asked = {"rounds": 1, "output_dir": tmp_path, "progress": False}
    run = nectar.run("feddgm", **asked, **AT_SITES | short)
    division = Division(run.config)
    held = np.concatenate([held for _, held in parts(division)])
    whole = samples(division.dataset.train, division.run.info, held)
    by_hand = evaluate(run.model, whole, division.run.task, 256)
    assert run.rounds[-1]["validation"]["accuracy"] == pytest.approx(by_hand.accuracy)
    with pytest.raises(ConfigError, match=r"learns another at the server \(mlp\): set data"):
        nectar.run("feddgm", **asked, **AT_SITES | short | {"feddgm.global_models": "mlp"})


@pytest.mark.extended
def test_a_private_run_may_have_none(tmp_path: Path) -> None:
    words = "data.validation_at=sites data.validation=0 privacy.noise_multiplier=1 privacy.counts=public"
    run = nectar.run(
        "fedavg", rounds=1, output_dir=tmp_path, progress=False, **SETTINGS | parse_set(words)
    )
    assert run.rounds[-1]["evaluated"] == {}
    assert run.rounds[-1]["validation"] is None


def test_a_server_without_any_data_has_a_best_round_by_it(tmp_path: Path) -> None:
    asked = {"rounds": 1, "output_dir": tmp_path, "progress": False}
    run = nectar.run("fedavg", **asked, **AT_SITES | {"evaluation.on": "none"})
    assert run.rounds[-1]["test"] is None
    best = Checkpoint.load(run.directory / "checkpoint" / "best.safetensors")
    assert best.validation_accuracy == run.rounds[-1]["validation"]["accuracy"]


def test_data_says_who_holds_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "data.validation_at=sites", "data.validation=0.2"]) == 0
    assert "each site holds back 0.2 of its images for validation" in capsys.readouterr().out


@pytest.mark.extended
def test_a_search_judges_by_it_and_shows_no_test_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "fedavg data.validation_at=sites --seeds 1 --tune-seeds 1 --tune fedavg.lr=0.01,0.3"
    asked = [*words.split(), "rounds=1", f"output-dir={tmp_path}", *SMALL.split()]
    assert cli.main(["compare", *asked]) == 0
    message = capsys.readouterr()
    lines = [line for line in (message.out + message.err).splitlines() if "] search fedavg" in line]
    assert len(lines) == 2
    found = []
    for path in tmp_path.glob("*seed1000*/metrics.jsonl"):
        last = json.loads(path.read_text().splitlines()[-1])
        found.append((last["validation"]["accuracy"], last["test"]["accuracy"]))
    assert len(found) == 2
    for validation, test in found:
        assert any(f": validation accuracy {validation:.4f}, " in line for line in lines)
        assert not any(f" {test:.4f}" in line for line in lines)
