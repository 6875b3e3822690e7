"""Weights to start from: a safetensors file in the place of the run's own draw, or one sentence."""

from __future__ import annotations

import hashlib
import json
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from federation import run, same_end
from safetensors.torch import save_file
from small import Small
from torch import Tensor

from common.config.loading import load
from common.division import Division
from common.errors import ConfigError
from common.learning.run import Run
from common.models import build
from nectar.engines.preflight import check
from nectar.records.identity import Identity
from nectar.records.past_run import PastRun
from nectar.words import parse_words
from server_app.start import starting_weights

NARROW = "model.width=4 model.depth=2"


def drawn(seed: int, classes: int = 10) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return dict(build("convnet", (1, 8, 8), classes, depth=2, width=4, generator=rng).state_dict())


def of(path: Path, words: str = NARROW) -> Run:
    return Division(load({"method": "fedavg", "set": f"{words} model.start={path}"})).run


def written(path: Path, tensors: dict[str, Tensor]) -> Path:
    save_file(tensors, path)
    return path


def test_the_file_is_what_the_first_round_begins_with(small: Small, tmp_path: Path) -> None:
    """A site that takes steps of no length sends back what it got; the run's own draw is another."""
    path = written(tmp_path / "start.safetensors", drawn(7))
    words = f"{NARROW} model.start={path} fedavg.lr=1e-30"
    record = run(small(method="fedavg", rounds=1, set=words))
    weights = PastRun.open(record.directory).checkpoint().weights
    assert all(torch.allclose(weights[k], t, rtol=0, atol=1e-7) for k, t in drawn(7).items())
    own = Division(load({"method": "fedavg", "set": NARROW})).run.build_model().state_dict()
    assert not torch.allclose(own["head.weight"], weights["head.weight"])


def test_a_run_that_continues_needs_the_file_no_more(small: Small, tmp_path: Path) -> None:
    path = written(tmp_path / "start.safetensors", drawn(7))
    config = small(method="fedavg", rounds=2, set=f"{NARROW} model.start={path}")
    whole = run(config)
    begun = run(config | {"rounds": 1})
    path.unlink()
    done = run(config | {"resume": str(begun.directory)})
    assert same_end(whole, done)


def test_a_last_layer_for_other_classes_keeps_the_runs_own_draw_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "start.safetensors", drawn(7, classes=3))
    chosen = of(path)
    with caplog.at_level(logging.INFO, "flwr"):
        weights = starting_weights(chosen)
    own = chosen.build_model().state_dict()
    for name, value in weights.items():
        expected = own[name] if name.startswith("head.") else drawn(7)[name]
        assert torch.equal(value, expected)
    assert f"{path}; head.weight, head.bias, of another shape there" in caplog.text


def test_torchvisions_weights_under_the_documented_names(tmp_path: Path) -> None:
    """The two lines of docs/own-parts.md, with weights of no training; ImageNet's 1,000 classes and ours."""
    theirs = torchvision.models.resnet18().state_dict()
    path = tmp_path / "resnet18.safetensors"
    save_file({k.replace("fc.", "head."): v for k, v in theirs.items()}, path)
    chosen = of(path, "model.name=resnet18 model.norm=batch")
    info = chosen.info
    object.__setattr__(chosen, "info", type(info)(**{**vars(info), "shape": (3, 64, 64)}))
    weights = starting_weights(chosen)
    assert torch.equal(weights["layer4.1.bn2.weight"], theirs["layer4.1.bn2.weight"])
    assert torch.equal(weights["conv1.weight"], theirs["conv1.weight"])
    assert weights["head.weight"].shape == (10, 512)


def test_torchvisions_own_network_keeps_its_names_and_its_last_layer_is_known(
    tmp_path: Path,
) -> None:
    theirs = torchvision.models.resnet18().state_dict()
    path = written(tmp_path / "start.safetensors", theirs)
    words = f"model.name=torchvision.models:resnet18 model.start={path}"
    weights = starting_weights(
        Division(load({"method": "fedavg", "dataset": "cifar10", "set": words})).run
    )
    assert weights["fc.weight"].shape == (10, 512)
    assert all(torch.equal(weights[k], t) for k, t in theirs.items() if not k.startswith("fc."))


def changed(change: str) -> dict[str, Tensor]:
    """Return the weights with one thing wrong."""
    tensors, name = drawn(7), "features.0.weight"
    if change == "lacking":
        del tensors[name]
    elif change == "headless":
        del tensors["head.bias"]
    elif change == "more":
        tensors["fc.weight"] = torch.zeros(2)
    elif change == "shape":
        tensors[name] = torch.zeros(4, 3, 3, 3)
    elif change == "dtype":
        tensors[name] = tensors[name].half()
    else:
        tensors[name][0, 0, 0, 0] = torch.nan
    return tensors


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("lacking", r"has no features.0.weight: give the weights of model.name=convnet"),
        ("headless", r"has no head.bias"),
        ("more", r"has fc.weight, which the model has not"),
        ("shape", r"float32 of shape \(4, 3, 3, 3\), and the model's is float32 of shape \(4, 1"),
        ("dtype", r"has features.0.weight as float16 of shape"),
        ("nan", r"has values in features.0.weight that are not finite"),
    ],
)
def test_another_networks_weights_are_refused_before_anything_begins(
    tmp_path: Path, change: str, says: str
) -> None:
    path = written(tmp_path / "start.safetensors", changed(change))
    with pytest.raises(ConfigError, match=says) as raised:
        check(of(path).config)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


class Planted:
    """What runs code where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Fail the test."""
        return pytest.fail, ("a pickle was read",)


@pytest.mark.parametrize("kind", ["missing", "pickle", "folder", "cut"])
def test_what_is_no_safetensors_file_is_refused_and_no_pickle_read(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "start.safetensors"
    if kind == "pickle":
        path.write_bytes(pickle.dumps(Planted()))
    elif kind == "folder":
        path.mkdir()
    elif kind == "cut":
        whole = written(path, drawn(7)).read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        ConfigError, match=r"start=.*cannot be read \(.*\): the server needs"
    ) as told:
        starting_weights(of(path))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("path", ["start.safetensors", "/x/start.pt"])
def test_another_path_is_refused_by_the_configuration(path: str) -> None:
    with pytest.raises(ConfigError, match=r"must be an absolute path to a \.safetensors file"):
        load({"method": "fedavg", "set": f"model.start={path}"})


def test_a_typed_path_starts_where_one_is(tmp_path: Path) -> None:
    found = parse_words(["model.start=start.safetensors"], directory=tmp_path)
    assert f"model.start={tmp_path / 'start.safetensors'}" in str(found["set"])


def test_a_runs_identity_has_the_files_content(small: Small, tmp_path: Path) -> None:
    path = written(tmp_path / "start.safetensors", drawn(7))
    given = small(method="fedavg", rounds=1, set=f"{NARROW} model.start={path}")
    record = run(given)
    provenance = json.loads((record.directory / "provenance.json").read_text())
    assert provenance["start"] == hashlib.sha256(path.read_bytes()).hexdigest()
    identity = Identity.of(load(given))
    assert identity.is_of(provenance)
    written(path, drawn(8))
    other = Identity.of(load(given))
    assert not other.is_of(provenance)
    assert other.key != identity.key
