"""Bad settings: one sentence each that says what, where it was given, and what to write instead."""

import re
from pathlib import Path

import pytest

from common.config import layers as layers_module
from common.config.keys import TYPED_KEYS, nearest_key
from common.config.loading import load
from common.config.schema import RENAMED, known_keys, section_classes
from common.errors import ConfigError
from common.methods import METHODS


def sentence(**run_config: object) -> str:
    """Load a run config that must be refused, and return what is said about it."""
    keys = {key.replace("_", "-"): value for key, value in run_config.items()}
    with pytest.raises(ConfigError) as caught:
        load(keys)
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "guess"),
    [
        ("feddm.icp", "feddm.ipc"),
        ("feddm.lr", "feddm.global_lr"),
        ("fedavg.rho", "feddm.rho"),
        ("fedmd.ipc", "feddm.ipc"),
        ("partition.aplha", "partition.alpha"),
        ("federation.site", "federation.sites"),
        ("round_s", "rounds"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest(key: str, guess: str) -> None:
    message = sentence(set=f"{key}=1")
    assert message == f"{key} on the command line is not a setting: did you mean {guess}?"


def test_a_key_like_no_other_is_answered_with_where_to_look() -> None:
    assert "nectar config --help" in sentence(set="zzzzzz.qqqqqq=1")


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("rounds=two", "rounds='two' on the command line must be a whole number, at least 1."),
        ("rounds=2.0", "rounds=2.0 on the command line must be a whole number, at least 1."),
        ("rounds=true", "rounds=true on the command line must be a whole number, at least 1."),
        ("rounds=0", "rounds=0 on the command line must be a whole number, at least 1."),
        ("fedavg.lr=true", "fedavg.lr=true on the command line must be a number, above 0."),
        ("fedavg.lr=.nan", "fedavg.lr=nan on the command line must be a number, above 0."),
        ("fedavg.lr=", "fedavg.lr='' on the command line must be a number, above 0."),
        ("feddm.ipc='3'", None),
        (
            "data.validation=0.6",
            "data.validation=0.6 on the command line must be a number, from 0 to 0.5.",
        ),
        (
            "federation.participation=0",
            "federation.participation=0 on the command line must be a number, above 0, at most 1.",
        ),
        (
            "fedavg.momentum=1",
            "fedavg.momentum=1 on the command line must be a number, at least 0, below 1.",
        ),
        (
            "feddm.start=nosie",
            "feddm.start='nosie' on the command line must be noise, smooth, mean, mix:K with K from 2 to 64, or real.",
        ),
        ("feddm.warm=1", "feddm.warm=1 on the command line must be true or false (on or off)."),
        (
            "compute.device=gpu",
            "compute.device='gpu' on the command line must be auto, cpu, cuda or cuda:N.",
        ),
        (
            "feddm.dsa=flip_crp",
            "feddm.dsa='flip_crp' on the command line must be "
            "any of color, crop, cutout, flip, scale, rotate joined by _: unknown or repeated transform.",
        ),
    ],
)
def test_a_wrong_value_is_answered_with_what_is_allowed(setting: str, expected: str | None) -> None:
    if (
        expected is None
    ):  # a text that looks like a number, quoted once for the shell and once for YAML
        setting = "\"feddm.ipc='3'\""
        expected = "feddm.ipc='3' on the command line must be a whole number, at least 1."
    assert sentence(set=setting) == expected


def test_run_config_keys_are_as_strict_as_set() -> None:
    assert sentence(rounds="two").startswith(
        "rounds='two' on the command line must be a whole number"
    )
    assert sentence(seed=-1).startswith(
        "seed=-1 on the command line must be a whole number, from 0"
    )
    assert sentence(seed=1.5).startswith("seed=1.5")
    assert sentence(method=5).startswith("method=5")


def test_settings_of_a_method_that_is_not_chosen_are_checked_too() -> None:
    assert "fedavg.lr=-1" in sentence(method="feddm", set="fedavg.lr=-1")


def test_a_method_inside_another_is_one_that_there_is() -> None:
    for method in ("fedssyn", "feddm"):
        message = sentence(method=method, set="fedssyn.inner=scafold")
        assert message.startswith(
            "fedssyn.inner='scafold' on the command line must be the name of another method: it is one of feddm, "
        )
        assert message.endswith(", such as scaffold.")
    assert "'fedssyn' on the command line must be" in sentence(set="fedssyn.inner=fedssyn")


def test_several_problems_are_a_line_each_and_only_the_first_few() -> None:
    message = sentence(
        set="feddm.icp=1 partition.aplha=1 rounds=0 seed=-1 fedavg.lr=0"
    ).splitlines()
    assert len(message) == 4
    assert message[-1] == "Not shown: 2 more of this kind."


def test_unknown_names_are_answered_with_the_nearest_and_the_list() -> None:
    message = sentence(method="feddmm")
    assert message.startswith(
        "method='feddmm' on the command line is unknown, the nearest is feddm: "
    )
    assert "feddm, fedaf, real, fedavg" in message
    assert "the nearest is mnist: there are cifar10, cifar100, digits" in sentence(dataset="minst")


def test_an_unknown_experiment_is_answered_with_the_nearest_and_no_list() -> None:
    assert sentence(experiment="feddm-mnist_small") == (
        "experiment='feddm-mnist_small' on the command line is unknown, the nearest is "
        "feddm-mnist-small: `nectar config --help` lists all."
    )
    assert "unknown: `nectar" in sentence(experiment="../dataset/digits")


def test_a_method_in_the_place_of_an_experiment_is_recognised() -> None:
    assert "method=fedavg" in sentence(experiment="fedavg")
    assert "dataset=mnist" in sentence(experiment="mnist")
    assert "`nectar compare table=feddm-2`" in sentence(experiment="feddm-2")


def test_an_unknown_run_config_key_is_named_or_given_its_section() -> None:
    assert sentence(roundss=3).endswith("is not a setting: did you mean rounds?")
    assert "or write rounds" in sentence(round=3)
    assert sentence(ipc=3) == "ipc on the command line lacks its section: did you mean feddm.ipc?"
    assert (
        sentence(ipc=3, method="feddgm")
        == "ipc on the command line lacks its section: did you mean feddgm.ipc?"
    )


ELSEWHERE = {
    "num_clients": "federation.sites",
    "num-supernodes": "federation.sites",
    "sites": "federation.sites",
    "fraction-fit": "federation.participation",
    "num_server_rounds": "rounds",
    "Rounds": "rounds",
    "gpu": "compute.device=cuda",
    "device": "compute.device",
    "wandb": "track=mlflow or track=tensorboard",
    "local-epochs": "fedavg.epochs",
    "batch_size": "fedavg.batch",
    "learning-rate": "fedavg.lr",
    "optimizer": "fedavg.local_optimizer",
    "momentum": "fedavg.momentum",
    "weight-decay": "fedavg.weight_decay",
}


@pytest.mark.parametrize("word", ELSEWHERE)
def test_words_of_flower_and_pytorch_are_known_by_name(word: str) -> None:
    assert f"did you mean {ELSEWHERE[word]}?" in sentence(method="fedavg", **{word: "1"})
    known = [*TYPED_KEYS, *known_keys()]
    for typed in (word, word.upper(), word.replace("_", "-"), f"fedavg.{word}"):
        assert nearest_key(typed, known, "fedavg") == ELSEWHERE[word]


def test_the_settings_of_the_chosen_method_come_first() -> None:
    """`optimizer=adam` was answered with fedsynth's whatever the method."""
    known = [*TYPED_KEYS, *known_keys()]
    for method, cls in section_classes().items():
        for name in cls.model_fields if method in METHODS else ():
            for typed in (name, name.upper(), name.replace("_", "-")):
                assert nearest_key(typed, known, method) == f"{method}.{name}"


def test_another_methods_setting_is_named_with_the_method_of_the_run() -> None:
    assert sentence(mu="1").endswith("did you mean fedprox.mu? This run's method is feddm.")
    assert sentence(mu="1", method="fedprox").endswith("did you mean fedprox.mu?")
    assert sentence(mu="1", experiment="digits-alpha001").endswith("This run's method is feddm.")


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ({"experiment": "fed-avg"}, "the nearest is fedavg"),
        ({"experiment": "FedAvg"}, "the nearest is fedavg"),
        ({"method": "Fed_Avg"}, "the nearest is fedavg"),
        ({"dataset": "MNIST"}, "the nearest is mnist"),
        ({"dataset": "CIFAR-10"}, "the nearest is cifar10"),
        ({"experiment": "CIFAR-10"}, "a data set is chosen by dataset=cifar10"),
    ],
)
def test_case_and_hyphens_do_not_count(given: dict[str, str], nearest: str) -> None:
    assert nearest in sentence(**given)


@pytest.mark.parametrize("key", ["output_dir", "data_dir", "resume"])
def test_relative_paths_are_refused(key: str) -> None:
    message = sentence(**{key: "here/there"})
    assert message.startswith(
        f"{key.replace('_', '-')}='here/there' on the command line must be an abs"
    )


def test_a_relative_path_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NECTAR_DATA", "here")
    assert sentence().startswith("NECTAR_DATA='here' in the environment must be an absolute path")


def test_paths_cannot_hide_in_set() -> None:
    assert "can only be given by itself" in sentence(set="output-dir=/x")


@pytest.mark.parametrize(
    ("text", "part"), [("'feddm.ipc=3", "quotation"), ("feddm.ipc", "key=value")]
)
def test_a_set_that_cannot_be_read_is_refused(text: str, part: str) -> None:
    assert part in sentence(set=text)


def test_settings_that_cannot_hold_together_are_refused() -> None:
    assert "federation.sites=3" in sentence(set="federation.sites=3 federation.min_replies=4")
    assert "data.site_holdout" in sentence(set="evaluation.on=sites")
    load({"set": "evaluation.on=both data.site_holdout=0.1"})
    with pytest.raises(ConfigError, match=r"min_replies=3 can never be met"):
        load({"set": "federation.min_replies=3"}).with_sites(2)


# --- in files


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("base: {rounds: two}", "rounds='two' in {} must be a whole number, at least 1."),
        ("base: {rouns: 2}", "rouns in {} is not a setting: did you mean rounds?"),
        ("base: {feddm: {icp: 2}}", "feddm.icp in {} is not a setting: did you mean feddm.ipc?"),
        ("base: {feddm: 3}", "feddm in {} must hold settings, not 3."),
        ("base: {feddm.ipc: [3]}", "feddm.ipc=a list in {} must be a whole number, at least 1."),
        ("base: {rounds: 2, rounds: 3}", "{}, line 2, cannot be read: 'rounds' twice."),
        ("base:\n  rounds: 2\n\tseed: 3", None),
        ("base: {dataset: minst}", None),
        ("base: 3", "{} must hold settings or the name of an experiment, not 3."),
        ("base: {base: 3}", "base in {} must be a name, not 3."),
        ("colums: []", "colums in {} is not a part of a table: did you mean columns?"),
        (
            "rounds: 2",
            "rounds in {} is not a part of a table: settings stand in base, small and columns.",
        ),
        (
            "columns: {a: {}}",
            "columns in {} must be a list of axes, each with labels and settings.",
        ),
    ],
)
def test_a_bad_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, expected: str | None
) -> None:
    for kind in ("dataset", "table"):
        (tmp_path / kind).mkdir()
    (tmp_path / "dataset" / "digits.yaml").touch()
    (tmp_path / "table" / "e.yaml").write_text(f"name: e\n{content}")
    monkeypatch.setattr(layers_module, "CONF", tmp_path)
    message = sentence(experiment="e")
    assert "conf/table/e.yaml" in message
    assert "\n" not in message
    assert expected is None or message == expected.format("conf/table/e.yaml")


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ("feddm: {ipc: 5}\nfeddm.ipc: 6", "feddm.ipc"),
        ("feddm.ipc: 6\nfeddm: {ipc: 5}", "feddm.ipc"),
        ("track: mlflow\ntrack.by: tensorboard", "track.by"),
    ],
)
def test_a_setting_spelt_in_two_ways_in_one_file_is_refused(
    tmp_path: Path, content: str, key: str
) -> None:
    (tmp_path / "own.yaml").write_text(content)
    message = sentence(config=str(tmp_path / "own.yaml"))
    assert f"{key} is twice in" in message
    assert "own.yaml" in message


def test_a_file_that_is_nested_without_end_is_named(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("a: " + "[" * 20_000)
    assert "nested too deeply" in sentence(config=str(tmp_path / "own.yaml"))


@pytest.mark.parametrize("key", ["data.file", "model.start"])
def test_paths_of_a_file_may_begin_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    section, name = key.split(".")
    ending = {"file": "x.npz", "start": "x.safetensors"}[name]
    (tmp_path / "own.yaml").write_text(f"{section}: {{{name}: ~/{ending}}}")
    config = load({"config": str(tmp_path / "own.yaml")})
    assert getattr(getattr(config, section), name) == str(tmp_path / ending)


def test_every_pattern_of_a_setting_is_of_all_its_text() -> None:
    """pydantic searches: fedpvr.layers="fc, layer4" passed, and failed later in the model's own words."""
    patterns = {
        f"{section}.{name}": bound.pattern
        for section, values in section_classes().items()
        for name, field in values.model_fields.items()
        for bound in field.metadata
        if getattr(bound, "pattern", None)
    }
    assert "fedpvr.layers" in patterns
    assert len(patterns) > 10
    assert {k for k, p in patterns.items() if not (p.startswith("^") and p.endswith("$"))} == set()
    for value in ("fc, layer4", "!a", "fc,"):
        assert "fedpvr.layers" in sentence(method="fedpvr", set=f"fedpvr.layers='{value}'")


def test_a_file_that_is_no_text_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "digits.yaml").write_bytes(b"\xff\xfe")
    monkeypatch.setattr(layers_module, "CONF", tmp_path)
    assert sentence() == "conf/dataset/digits.yaml cannot be read: it is not UTF-8 text."


def test_a_dataset_file_does_not_name_a_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "digits.yaml").write_text("dataset: mnist")
    monkeypatch.setattr(layers_module, "CONF", tmp_path)
    assert "conf/dataset/digits.yaml" in sentence()


def test_a_setting_that_had_another_name_is_told_by_its_new_one() -> None:
    for old, new in RENAMED.items():
        with pytest.raises(ConfigError, match=rf"{old} .* did you mean {re.escape(new)}\?"):
            load({"set": f"{old}=3"})


@pytest.mark.parametrize(
    "word",
    [
        "fedgen.hidden=1000000000",
        "fedgen.noise=1000000000",
        "fedgen.drawn=100000000",
        "feddpms.copies=100000000",
        "fedssyn.diffusion_steps=10000000000",
    ],
)
def test_what_asks_for_gigabytes_is_refused_at_once(word: str) -> None:
    with pytest.raises(ConfigError, match=rf"{word.partition('=')[0]}=.* must be"):
        load({"method": word.partition(".")[0], "set": word})
