"""``base``: an experiment file that holds only its departures from another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.config import layers as layers_module
from common.config.loading import load
from common.errors import ConfigError


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a bare ``conf`` folder, with the data sets digits and mnist, that load reads instead."""
    for kind in ("dataset", "experiment"):
        (tmp_path / kind).mkdir()
    (tmp_path / "dataset" / "digits.yaml").touch()
    (tmp_path / "dataset" / "mnist.yaml").write_text("seed: 1\nrounds: 1")
    monkeypatch.setattr(layers_module, "CONF", tmp_path)
    return tmp_path / "experiment"


def sentence(**run_config: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(run_config)
    return str(caught.value)


def test_a_file_wins_over_its_base_and_that_over_its_own_and_the_data_set(conf: Path) -> None:
    (conf / "a.yaml").write_text(
        "dataset: mnist\nrounds: 2\npartition: {alpha: 2}\nmodel: {width: 2}"
    )
    (conf / "b.yaml").write_text("base: a\npartition: {alpha: 3, min_size: 3}\nmodel: {depth: 3}")
    (conf / "c.yaml").write_text("base: b\npartition: {min_size: 4}")
    config = load({"experiment": "c", "set": "model.depth=2"})
    assert (config.experiment, config.dataset, config.seed, config.rounds) == ("c", "mnist", 1, 2)
    assert (config.partition.alpha, config.partition.min_size) == (3.0, 4)
    assert (config.model.width, config.model.depth) == (2, 2)
    assert dict(config.origin) | {"data-dir": "", "output-dir": ""} == {
        "experiment": "the command line",
        "dataset": "conf/experiment/a.yaml",
        "seed": "conf/dataset/mnist.yaml",
        "rounds": "conf/experiment/a.yaml",
        "partition.alpha": "conf/experiment/b.yaml",
        "partition.min_size": "conf/experiment/c.yaml",
        "model.width": "conf/experiment/a.yaml",
        "model.depth": "the command line",
        "data-dir": "",
        "output-dir": "",
    }


def test_the_nearest_file_that_names_a_data_set_brings_it(conf: Path) -> None:
    (conf / "a.yaml").write_text("dataset: mnist")
    (conf / "b.yaml").write_text("base: a\ndataset: digits")
    assert load({"experiment": "b"}).rounds == 20
    assert load({"experiment": "b", "dataset": "mnist"}).rounds == 1


def test_the_same_run_written_with_a_base_or_without_is_the_same_run(conf: Path) -> None:
    (conf / "a.yaml").write_text("rounds: 3")
    (conf / "b.yaml").write_text("base: a\nseed: 4")
    (conf / "c.yaml").write_text("rounds: 3\nseed: 4")
    based, plain = load({"experiment": "b"}), load({"experiment": "c"})
    assert based.digest() == plain.digest()
    assert load(based.to_run_config()) == based


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("base: e", "base in conf/experiment/e.yaml leads back to e: remove one base."),
        ("base: f", "base in conf/experiment/f.yaml leads back to e: remove one base."),
        ("base: 3", "base in conf/experiment/e.yaml must be a name, not 3."),
        ("base:", "base in conf/experiment/e.yaml must be a name, not null."),
        ("base: [f]", "base in conf/experiment/e.yaml must be a name, not a list."),
    ],
)
def test_a_base_that_cannot_be_is_a_sentence(conf: Path, content: str, said: str) -> None:
    (conf / "e.yaml").write_text(content)
    (conf / "f.yaml").write_text("base: e")
    assert sentence(experiment="e") == said


def test_a_base_that_does_not_exist_is_answered_with_the_nearest(conf: Path) -> None:
    (conf / "e.yaml").write_text("base: fine-run")
    (conf / "fine-run2.yaml").touch()
    said = sentence(experiment="e")
    assert said.startswith("experiment='fine-run' in conf/experiment/e.yaml is unknown")
    assert "the nearest is fine-run2" in said


def test_a_mistake_in_a_base_is_reported_with_the_bases_file(conf: Path) -> None:
    (conf / "a.yaml").write_text("feddm: {icp: 3}")
    (conf / "b.yaml").write_text("base: a")
    assert sentence(experiment="b").startswith("feddm.icp in conf/experiment/a.yaml is no setting")


def test_only_an_experiment_file_has_a_base(conf: Path) -> None:
    (conf / "a.yaml").touch()
    assert "base" in sentence(base="a")
    assert "base on the command line is no setting" in sentence(set="base=a")
    (conf.parent / "dataset" / "digits.yaml").write_text("base: a")
    assert "base in conf/dataset/digits.yaml is no setting" in sentence()
