"""Weights to start from: a file, or torchvision's, in the place of the run's own draw, or one sentence."""

from __future__ import annotations

import hashlib
import json
import logging
import pickle
from pathlib import Path
from types import SimpleNamespace
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
from common.learning.start import asked_of, start_checksum, starting_weights
from common.learning.start import published as entry_of
from common.models import build
from nectar.arguments import parse_arguments
from nectar.engines.preflight import check
from nectar.records.identity import Identity
from nectar.records.record import RunRecord

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
    weights = RunRecord.open(record.directory).checkpoint().weights
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


def test_a_typed_path_starts_where_one_is(tmp_path: Path) -> None:
    found = parse_arguments(["model.start=start.safetensors"], directory=tmp_path)
    assert f"model.start={tmp_path / 'start.safetensors'}" in str(found["set"])


def test_a_runs_identity_has_the_files_content(small: Small, tmp_path: Path) -> None:
    path = written(tmp_path / "start.safetensors", drawn(7))
    given = small(method="fedavg", rounds=1, set=f"{NARROW} model.start={path}")
    record = run(given)
    provenance = json.loads((record.directory / "provenance.json").read_text())
    assert provenance["start"] == hashlib.sha256(path.read_bytes()).hexdigest()
    identity = Identity.of(load(given))
    assert not identity.why_not(provenance)
    written(path, drawn(8))
    other = Identity.of(load(given))
    assert other.why_not(provenance)
    assert other.key != identity.key


# ---- files of torch.save's, and torchvision's -------------------------------------------------------------


def old_resnet(path: Path, classes: int = 1000) -> dict[str, Tensor]:
    """Write what torchvision publishes: parameters under its names, without counts of batches."""
    theirs = torchvision.models.resnet18(num_classes=classes).state_dict()
    kept = {k: torch.nn.Parameter(v) for k, v in theirs.items() if "num_batches" not in k}
    torch.save(kept, path)
    return dict(theirs)


def colour(chosen: Run) -> Run:
    """Return the run with colour images of 64 pixels, as ImageNet's stem takes them."""
    info = chosen.info
    object.__setattr__(chosen, "info", type(info)(**{**vars(info), "shape": (3, 64, 64)}))
    return chosen


RESNET = "model.name=resnet18 model.norm=batch"


def test_a_file_of_torch_save_is_read_and_its_last_layer_is_ours(tmp_path: Path) -> None:
    path = tmp_path / "resnet18.pth"
    theirs = old_resnet(path)
    weights = starting_weights(colour(of(path, RESNET)))
    for name, value in theirs.items():
        if not name.startswith("fc."):
            assert torch.equal(weights[name], value)
    assert weights["head.weight"].shape == (10, 512)
    assert not any(value.requires_grad for value in weights.values())


def test_a_last_layer_of_another_name_and_of_our_classes_is_taken(tmp_path: Path) -> None:
    tensors = {k.replace("head.", "fc."): v for k, v in drawn(7).items()}
    torch.save(tensors, tmp_path / "start.pt")
    weights = starting_weights(of(tmp_path / "start.pt"))
    assert all(torch.equal(weights[name], value) for name, value in drawn(7).items())


@pytest.mark.parametrize("extra", ["fc.weight", "more.layers.weight"])
def test_what_else_a_file_has_is_refused_as_ever(tmp_path: Path, extra: str) -> None:
    tensors = {k.replace("head.", "fc."): v for k, v in drawn(7).items()}
    tensors["other.weight" if extra == "fc.weight" else extra] = torch.ones(2)
    torch.save(tensors, tmp_path / "start.pt")
    with pytest.raises(ConfigError, match=r"has no head.weight"):
        starting_weights(of(tmp_path / "start.pt"))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (Planted(), "cannot be read"),
        ({"state_dict": {"w": torch.ones(1)}}, "it holds 'state_dict', which is not a tensor"),
        ([torch.ones(1)], "it holds a list and no state_dict"),
    ],
)
def test_what_is_no_state_dict_is_refused_and_nothing_in_it_is_run(
    tmp_path: Path, content: Any, says: str
) -> None:
    torch.save(content, tmp_path / "start.pth")
    with pytest.raises(ConfigError, match=says) as told:
        starting_weights(of(tmp_path / "start.pth"))
    assert "\n" not in str(told.value)


def test_a_checksum_is_held_against_the_file(tmp_path: Path) -> None:
    path = written(tmp_path / "start.safetensors", drawn(7))
    right = hashlib.sha256(path.read_bytes()).hexdigest()
    assert starting_weights(of(path, f"{NARROW} model.sha256={right}"))
    with pytest.raises(ConfigError, match=rf"has SHA-256 {right}, and model.sha256=(ab)+ asks"):
        starting_weights(of(path, f"{NARROW} model.sha256={'ab' * 32}"))


def named(tmp_path: Path, words: str = RESNET, name: str = "IMAGENET1K_V1") -> Run:
    keys = {"method": "fedavg", "data-dir": str(tmp_path / "data")}
    return Division(load({**keys, "set": f"{words} model.start=torchvision:{name}"})).run


def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, Tensor]]:
    """Publish a network of torchvision's form, under a name with its hash, where torchvision says that its own are."""
    theirs = old_resnet(tmp_path / "made.pth")
    sha = hashlib.sha256((tmp_path / "made.pth").read_bytes()).hexdigest()
    path = (tmp_path / "made.pth").rename(tmp_path / f"resnet18-{sha[:8]}.pth")
    monkeypatch.setattr(
        "common.learning.start.published",
        lambda asked: SimpleNamespace(url=path.as_uri()),
    )
    return path, theirs


@pytest.mark.extended
def test_torchvisions_weights_are_fetched_once_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, theirs = published(tmp_path, monkeypatch)
    weights = starting_weights(colour(named(tmp_path)))
    assert torch.equal(weights["layer4.1.conv2.weight"], theirs["layer4.1.conv2.weight"])
    kept = tmp_path / "data" / "weights" / path.name
    assert [found.name for found in kept.parent.iterdir()] == [path.name]
    assert start_checksum(named(tmp_path).config) == hashlib.sha256(kept.read_bytes()).hexdigest()

    path.unlink()  # from here on there is no network
    assert starting_weights(colour(named(tmp_path)))
    kept.write_bytes(kept.read_bytes() + b"\0")
    with pytest.raises(ConfigError, match=r"has SHA-256 [0-9a-f]+, and its name says .*delete it"):
        starting_weights(colour(named(tmp_path)))
    kept.unlink()
    with pytest.raises(ConfigError, match=rf"the download failed .* there as {kept}"):
        starting_weights(colour(named(tmp_path)))


def test_a_download_that_is_another_file_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = published(tmp_path, monkeypatch)
    path.write_bytes(b"something else")
    with pytest.raises(ConfigError, match=r"the download failed \(invalid hash value"):
        starting_weights(colour(named(tmp_path)))
    assert list((tmp_path / "data" / "weights").iterdir()) == []


@pytest.mark.extended
@pytest.mark.parametrize(
    ("words", "file"),
    [
        (RESNET, "resnet18-f37072fd.pth"),
        ("model.name=torchvision.models:resnet50", "resnet50-0676ba61.pth"),
        ("model.name=vgg11", "vgg11-8a719046.pth"),
    ],
)
def test_torchvision_says_where_its_weights_are(tmp_path: Path, words: str, file: str) -> None:
    config = load({"method": "fedavg", "set": f"{words} model.start=torchvision:IMAGENET1K_V1"})
    assert entry_of(asked_of(config)).url.endswith(f"/{file}")


def test_typed_it_stays_a_name(tmp_path: Path) -> None:
    found = parse_arguments(["model.start=torchvision:IMAGENET1K_V1"], directory=tmp_path)
    assert found["set"] == "model.start=torchvision:IMAGENET1K_V1"
