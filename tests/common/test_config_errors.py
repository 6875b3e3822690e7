"""Bad settings: one sentence each that says what, where it was given, and what to write instead."""

from pathlib import Path

import pytest

from common.config import layers as layers_module
from common.config.keys import TYPED_KEYS, nearest_key
from common.config.loading import load
from common.config.schema import known_keys, section_classes
from common.errors import ConfigError
from common.methods import METHODS


def sentence(**run_config: object) -> str:
    """Load a run config that must be refused, and return what is said about it."""
    keys = {key.replace("_", "-"): value for key, value in run_config.items()}
    with pytest.raises(ConfigError) as caught:
        load(keys)
    return str(caught.value)


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


@pytest.mark.extended
def test_the_settings_of_the_chosen_method_come_first() -> None:
    """`optimizer=adam` was answered with fedsynth's whatever the method."""
    known = [*TYPED_KEYS, *known_keys()]
    for method, cls in section_classes().items():
        for name in cls.model_fields if method in METHODS else ():
            for typed in (name, name.upper(), name.replace("_", "-")):
                assert nearest_key(typed, known, method) == f"{method}.{name}"


def test_settings_that_cannot_hold_together_are_refused() -> None:
    assert "federation.sites=3" in sentence(set="federation.sites=3 federation.min_replies=4")
    assert "data.site_holdout" in sentence(set="evaluation.on=sites")
    load({"set": "evaluation.on=both data.site_holdout=0.1"})
    with pytest.raises(ConfigError, match=r"min_replies=3 can never be met"):
        load({"set": "federation.min_replies=3"}).with_sites(2)


# --- in files


@pytest.mark.extended
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
