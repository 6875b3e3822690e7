"""The configuration: what wins over what, where a value came from, and what identifies a run."""

import itertools
import tomllib
from pathlib import Path

import pytest
from places import ROOT
from tiers import only_these_first

from common.code.imports import load as import_path
from common.config import layers as layers_module
from common.config.keys import CONFIG, RUN_KEYS
from common.config.layers import names
from common.config.loading import load
from common.config.resolved import Config
from common.config.schema import known_keys, section_classes
from common.config.tables import experiment_names
from common.data.published.catalogue import NAMES as DATASETS
from common.errors import ConfigError
from common.methods import METHODS, resolve, settings_class
from common.settings.fedavg import FedAvgSettings
from common.settings.feddm import TRANSFORMS, FedDMSettings
from common.settings.sections import FederationSettings, ImageTrainingSettings
from synth import augmentation


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a bare ``conf`` folder, with the data set digits, that load reads instead."""
    for kind in ("dataset", "table"):
        (tmp_path / kind).mkdir()
    (tmp_path / "dataset" / "digits.yaml").touch()
    monkeypatch.setattr(layers_module, "CONF", tmp_path)
    for variable in ("NECTAR_RUNS", "NECTAR_DATA"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


def feddm(config: Config) -> FedDMSettings:
    assert isinstance(config.settings, FedDMSettings)
    return config.settings


# --- what wins


def test_each_layer_wins_over_those_below_it(conf: Path) -> None:
    (conf / "dataset" / "digits.yaml").write_text(
        "rounds: 2\nseed: 2\nfeddm: {ipc: 2, keep: 2, rho: 2}"
    )
    (conf / "table" / "e.yaml").write_text(
        "name: e\nbase: {rounds: 3, seed: 3, feddm: {ipc: 3, keep: 3}}"
    )
    config = load({"experiment": "e", "rounds": 4, "set": "feddm.ipc=5"})
    found = (
        config.rounds,
        config.seed,
        *(getattr(feddm(config), n) for n in ("ipc", "keep", "rho")),
    )
    assert found == (4, 3, 5, 3, 2.0)
    assert feddm(config).iterations == 1000
    assert dict(config.origin) == {
        "experiment": "the command line",
        "rounds": "the command line",
        "seed": "conf/table/e.yaml",
        "feddm.ipc": "the command line",
        "feddm.keep": "conf/table/e.yaml",
        "feddm.rho": "conf/dataset/digits.yaml",
    }


def test_set_wins_over_the_run_configs_own_keys_and_its_last_word_over_the_first() -> None:
    config = load({"rounds": 4, "set": "rounds=6 feddm.ipc=1 feddm.ipc=2"})
    assert (config.rounds, feddm(config).ipc) == (6, 2)


def test_the_data_set_of_the_highest_layer_brings_its_file(conf: Path) -> None:
    for name, rounds in (("a", 2), ("b", 3), ("c", 4)):
        (conf / "dataset" / f"{name}.yaml").write_text(f"rounds: {rounds}")
    (conf / "table" / "e.yaml").write_text("name: e\nbase: {dataset: a}")
    assert load({"experiment": "e"}).rounds == 2
    assert load({"experiment": "e", "dataset": "b"}).rounds == 3
    assert load({"experiment": "e", "dataset": "b", "set": "dataset=c"}).rounds == 4


def test_empty_text_means_unset() -> None:
    assert load(dict.fromkeys(RUN_KEYS, "")) == load({})


def test_defaults_are_the_classes_own_and_stay_so(conf: Path) -> None:
    before = FedDMSettings()
    config = load({"set": "feddm.ipc=3 federation.sites=4"})
    assert (config.method, config.dataset, config.rounds, config.seed) == ("feddm", "digits", 20, 0)
    assert FedDMSettings() == before == feddm(load({}))
    assert FederationSettings().sites == 10


def test_a_resolved_configuration_cannot_be_changed() -> None:
    config = load({})
    with pytest.raises(Exception, match="frozen"):
        config.settings.ipc = 3  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        config.rounds = 3  # type: ignore[misc]


def test_two_methods_settings_stand_in_one_line_and_the_chosen_ones_are_used() -> None:
    line = {"set": "feddm.ipc=7 fedavg.lr=0.3"}
    assert feddm(load(line)).ipc == 7
    config = load({**line, "method": "fedavg"})
    assert isinstance(config.settings, FedAvgSettings)
    assert config.settings.lr == 0.3
    assert "feddm" not in config.to_dict()


def test_an_experiment_serves_with_another_method(conf: Path) -> None:
    (conf / "table" / "e.yaml").write_text(
        "name: e\nbase: {method: real, real.ipc: 3, fedavg.lr: 0.3}"
    )
    assert load({"experiment": "e"}).settings.model_dump()["ipc"] == 3
    config = load({"experiment": "e", "method": "fedavg"})
    assert config.settings.model_dump()["lr"] == 0.3


# --- the files and classes that ship


@pytest.mark.extended
@pytest.mark.parametrize(
    "method", only_these_first([*METHODS, "flwr.serverapp.strategy:FedAdam"], "feddm", "fedavg")
)
@pytest.mark.parametrize("kind", ["dataset", "experiment"])
def test_every_name_loads_with_every_method(kind: str, method: str) -> None:
    """Every data set with each method, every experiment with three or four of them."""
    nth = list(METHODS).index(method) if method in METHODS else 0
    known = names(kind) if kind == "dataset" else experiment_names()[nth % 6 :: 6]
    assert known
    for name in known:
        given = {kind: name, "method": method, "set": "data.send_originals=on"}
        if (name[:15], method) == ("fedsynth-reddit", "fednova"):  # which clips gradients
            with pytest.raises(ConfigError, match="set clip_norm=0"):
                load(given)
            continue
        try:
            config = load(given)
        except ConfigError as error:
            told = str(error)
        else:
            assert config.method == method
            continue
        # a private cell, under a method that has no such noise; or its split, where another one is held out
        assert kind == "experiment"
        assert load({kind: name}).private or "leave data.site_holdout out" in told


def test_the_default_run_is_the_documented_one() -> None:
    config = load({})
    settings = feddm(config)
    assert (config.dataset, config.rounds, config.federation.sites) == ("digits", 5, 10)
    assert (config.partition.kind, config.partition.alpha) == ("dirichlet", 0.1)
    assert (config.model.name, config.model.depth, config.model.width) == ("convnet", 2, 32)
    assert (settings.start, settings.warm, settings.ipc, settings.iterations) == (
        "noise",
        True,
        10,
        100,
    )
    assert (settings.image_lr, settings.image_momentum, settings.real_batch) == (10.0, 0.5, 256)
    server = config.image_training
    assert (server.lr, server.momentum, server.batch) == (0.05, 0.9, 256)
    assert (server.epochs, server.ball, settings.rho) == (100, 4.0, 4.0)


def test_feddms_defaults_are_the_papers_but_for_a_start_that_is_safe() -> None:
    expected = {
        "iterations": 1000, "image_lr": 1.0, "real_batch": 256, "ipc": 10, "rho": 5.0,
        "lr": 0.01, "batch": 256, "epochs": 500, "ball": 5.0, "image_weighting": "uniform",
        "start": "noise", "warm": True, "keep": 1, "dsa": "",
    }  # fmt: skip
    values = ImageTrainingSettings().model_dump() | FedDMSettings().model_dump()
    assert {name: values[name] for name in expected} == expected


def test_every_data_set_has_its_file_and_every_file_its_data_set() -> None:
    folders = {name for name in names("dataset") if load({"dataset": name}).images.classes}
    assert set(names("dataset")) == {*DATASETS, *folders, "images"}


def test_the_augmentations_that_settings_permit_are_those_there_are() -> None:
    assert set(TRANSFORMS) == set(augmentation.TRANSFORMS)


def test_pyproject_states_the_run_configs_keys_all_unset() -> None:
    content = tomllib.loads((ROOT / "pyproject.toml").read_text())
    keys = dict.fromkeys(RUN_KEYS, "")
    del keys[CONFIG]  # it is read where it is typed, and never travels
    assert content["tool"]["flwr"]["app"]["config"] == keys


def test_every_registered_method_resolves_to_settings() -> None:
    for name, method in METHODS.items():
        assert settings_class(name) is import_path(method.settings)
    assert resolve("flwr.serverapp.strategy:FedAdam").client == "client_app.fedavg:ForeignClient"


def test_every_setting_says_what_it_means() -> None:
    for section, cls in section_classes().items():
        for name, field in cls.model_fields.items():
            assert field.description, f"{section}.{name}"


def test_no_method_has_the_name_of_a_section_or_run_key() -> None:
    keys = known_keys()
    assert len(keys) == len(set(keys))
    assert not set(METHODS) & {*RUN_KEYS, "strategy"}


# --- paths


def test_paths_come_from_the_run_config_else_the_environment_else_home(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("NECTAR_RUNS", raising=False)
    monkeypatch.delenv("NECTAR_DATA", raising=False)
    config = load({})
    assert config.output_dir == Path("/home/someone/nectar/runs")
    assert config.data_dir == Path("/home/someone/.cache/nectar/data")
    monkeypatch.setenv("NECTAR_DATA", "/elsewhere")
    config = load({"output-dir": "~/here"})
    assert config.output_dir == Path("/home/someone/here")
    assert config.data_dir == Path("/elsewhere")
    assert config.origin["data-dir"] == "the variable NECTAR_DATA"
    assert load({"data-dir": "/mine"}).data_dir == Path("/mine")


# --- identity and round trip


def test_a_resolved_configuration_survives_its_run_config(conf: Path) -> None:
    (conf / "dataset" / "digits.yaml").write_text("partition: {alpha: 0.1}\nfeddm: {ipc: 3}")
    config = load({"seed": 3, "set": "feddm.ipc=10 evaluation.on=none", "resume": "/a run/one"})
    pinned = config.to_run_config()
    (conf / "dataset" / "digits.yaml").write_text("partition: {alpha: 7}\nfeddm: {ipc: 8}")
    assert load(pinned) == config
    assert load(pinned).digest() == config.digest()


def test_digest_follows_what_decides_the_numbers_and_nothing_else() -> None:
    base = load({}).digest()
    same = (
        {"output-dir": "/x"}, {"data-dir": "/x"}, {"resume": "/x"}, {"set": "fedavg.lr=0.3"},
        {"set": "compute.workers=2"}, {"set": "federation.wave=3"},
        {"set": "federation.round_deadline=7"}, {"set": "feddm.rho=4"}, {"rounds": 5},
    )  # fmt: skip
    assert {load(run_config).digest() for run_config in same} == {base}
    other = (
        {"method": "fedavg"}, {"dataset": "mnist"}, {"rounds": 6}, {"seed": 1},
        {"set": "feddm.ipc=11"}, {"set": "partition.alpha=0.2"}, {"set": "federation.sites=9"},
        {"set": "wire.images=uint8"}, {"method": "flwr.serverapp.strategy:FedAdam"},
        {"method": "flwr.serverapp.strategy:FedAdam", "set": "strategy.eta=0.5"},
    )  # fmt: skip
    digests = [base, *(load(run_config).digest() for run_config in other)]
    assert all(a != b for a, b in itertools.combinations(digests, 2))


def test_with_clients_changes_their_number_alone() -> None:
    config = load({})
    fewer = config.with_sites(2)
    assert fewer.federation.sites == 2
    assert config.federation.sites == 10
    assert fewer.with_sites(10) == config


def test_the_dump_shows_where_values_were_given_and_stays_yaml(conf: Path) -> None:
    from common.config.text import read_yaml

    (conf / "dataset" / "digits.yaml").write_text("feddm: {ipc: 3}")
    config = load({"rounds": 2, "set": "evaluation.batch=7"})
    lines = config.dump_yaml(origins=True).splitlines()
    assert "rounds: 2  # the command line" in lines
    assert "  ipc: 3  # conf/dataset/digits.yaml" in lines
    assert "  batch: 7  # the command line" in lines
    assert "  rho: 5.0" in lines
    file = conf / "dump.yaml"
    for origins in (True, False):
        file.write_text(config.dump_yaml(origins=origins))
        assert read_yaml(file, "dump") == config.to_dict()
