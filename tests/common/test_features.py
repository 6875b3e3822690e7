"""Images as rows of a frozen network: the rows by hand, who reads what, and what is refused before any work."""

from __future__ import annotations

import hashlib
import logging
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from documents import written
from federation import run, same_end
from safetensors.torch import save_file
from small import Small

from client_app.owner.node_config import NodeConfig
from client_app.site import bounded
from common.config.loading import load
from common.data.features import Extractor
from common.data.loading import load as load_set
from common.data.published.catalogue import describe
from common.division import Division
from common.errors import ConfigError, DataError, FederationError
from common.models import Classifier, build
from common.models.registry import MODELS, takes
from common.storage.limits import Bounds
from nectar.cli import main

NARROW: dict[str, Any] = {"depth": 2, "width": 4, "norm": "batch"}
WORDS = "features.name=convnet features.depth=2 features.width=4 features.norm=batch"


def network() -> Classifier:
    rng = torch.Generator().manual_seed(5)
    made = build("convnet", (1, 8, 8), 10, generator=rng, **NARROW)
    for name, buffer in made.named_buffers():
        if name.endswith(("mean", "var")):  # statistics that are not those a new network has
            buffer.copy_(0.1 * torch.rand(buffer.shape, generator=rng) + 0.05)
    return made


def stated(folder: Path) -> str:
    """Write the network's weights below ``folder`` and return the words of a run that learns from its embeddings."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(network().state_dict(), folder / "net.safetensors")
    sha = hashlib.sha256((folder / "net.safetensors").read_bytes()).hexdigest()
    return f"{WORDS} features.start={folder / 'net.safetensors'} features.sha256={sha}"


def division(words: str, data_dir: Path, bounds: Bounds | None = None, **keys: Any) -> Division:
    config = load({"method": "fedavg", "data-dir": str(data_dir), "set": words, **keys})
    return Division(config) if bounds is None else Division(config, bounds)


def test_a_row_is_the_embedding_of_its_image_alone_at_one_length(tmp_path: Path) -> None:
    """In float64 by hand, one image at a time; the network's batch norm does not see the others of a batch."""
    rows = division(stated(tmp_path / "net"), tmp_path / "data").dataset
    images = load_set("digits", tmp_path / "data")
    model = network().double().eval()
    for split, theirs in ((rows.train, images.train), (rows.test, images.test)):
        assert np.array_equal(split.labels, theirs.labels)
        for at in range(0, len(split), len(split) // 9):
            x = torch.from_numpy(theirs.images[at : at + 1].astype(np.float64))
            h = model.embed((x / 16.0 - 0.3054) / 0.3762)[0]
            expected = h * math.sqrt(len(h)) / h.norm()
            found = torch.from_numpy(split.images[at].astype(np.float64)).flatten()
            assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)
            assert float(found.square().mean()) == pytest.approx(1.0, rel=1e-5)
    assert rows.info.kind == "table"
    assert rows.info.shape == (16, 1, 1)
    assert rows.info.largest == pytest.approx(4.0)


@pytest.mark.extended
def test_torchvisions_weights_take_images_as_they_were_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    theirs = torchvision.models.resnet18().eval()
    torch.save(theirs.state_dict(), tmp_path / "made.pth")
    sha = hashlib.sha256((tmp_path / "made.pth").read_bytes()).hexdigest()
    weights = tmp_path / "data" / "weights"
    weights.mkdir(parents=True)
    path = (tmp_path / "made.pth").rename(weights / f"resnet18-{sha[:8]}.pth")
    preset = torchvision.models.ResNet18_Weights.IMAGENET1K_V1.transforms
    entry = SimpleNamespace(url=path.as_uri(), transforms=preset)
    monkeypatch.setattr("common.learning.start.published", lambda asked: entry)
    monkeypatch.setattr("common.data.features.published", lambda asked: entry)
    images = load_set("digits", tmp_path / "data").test.images[:3]
    np.savez(
        tmp_path / "few.npz",
        x_train=(images[:, 0] * 15).astype(np.uint8),
        y_train=np.arange(3),
        x_test=(images[:, 0] * 15).astype(np.uint8),
        y_test=np.arange(3),
    )
    words = (
        f"data.file={tmp_path / 'few.npz'} features.name=resnet18 features.norm=batch "
        "features.start=torchvision:IMAGENET1K_V1"
    )
    rows = division(words, tmp_path / "data").dataset.test.images
    x = torch.from_numpy((images * 15).astype(np.uint8)).expand(-1, 3, -1, -1)
    grey = torchvision.transforms.functional.resize(x.float() / 255, [256], antialias=True)
    cropped = grey[:, :, 16:240, 16:240]
    mean, std = (
        torch.tensor(each)[:, None, None] for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    )
    theirs.fc = torch.nn.Identity()
    with torch.inference_mode():
        h = theirs((cropped - mean) / std)
    expected = h * math.sqrt(512) / h.norm(dim=1, keepdim=True)
    assert torch.allclose(torch.from_numpy(rows.copy()).flatten(1), expected, atol=1e-3)


@pytest.mark.sweep
@pytest.mark.parametrize("method", ["fedavg", "feddm", "fedsynth", "real"])
def test_methods_learn_from_rows_and_the_same_words_give_the_same_numbers(
    small: Small, tmp_path: Path, method: str
) -> None:
    words = stated(tmp_path / "net") + (" fedsynth.rate=4" if method == "fedsynth" else "")
    config = small(method=method, rounds=1, set=words) | {"data-dir": str(tmp_path)}
    once, again = run(config), run(config)
    assert same_end(once, again)
    assert "name: logistic" in (once.directory / "config.yaml").read_text(encoding="utf-8")


def test_text_has_no_features(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="takes images, and reddit2k holds none"):
        _ = division(f"{WORDS} features.start=torchvision:X", tmp_path, dataset="reddit2k").run


def test_other_weights_than_those_stated_are_refused_and_a_server_hears_no_more(
    tmp_path: Path,
) -> None:
    words = stated(tmp_path / "net")
    save_file(network().double().state_dict(), tmp_path / "net" / "net.safetensors")
    with pytest.raises(DataError, match="has SHA-256") as caught:
        _ = division(words, tmp_path / "data").dataset
    assert "this site's log says why" in caught.value.reported
    assert "SHA-256" not in caught.value.reported


def test_a_site_reads_nothing_outside_its_data_root_and_fetches_nothing_unasked(
    tmp_path: Path,
) -> None:
    root = tmp_path / "data"
    root.mkdir()
    bounds = Bounds(root, download=False)
    with pytest.raises(DataError, match="outside of this site's data-root"):
        _ = division(stated(tmp_path / "net"), root, bounds).dataset
    published = (
        "features.name=resnet18 features.norm=batch features.start=torchvision:IMAGENET1K_V1"
    )
    with pytest.raises(DataError, match="this site downloads nothing"):
        _ = division(published, root, bounds).dataset
    words = stated(root / "weights").replace(f"{root / 'weights'}/", "")
    assert len(division(words, root, bounds).dataset.train)


def test_max_parameters_is_of_the_network_too(tmp_path: Path) -> None:
    words = stated(tmp_path / "weights").replace(f"{tmp_path / 'weights'}/", "")
    numbers = sum(tensor.numel() for tensor in network().state_dict().values())
    one = division(words, tmp_path)
    assert one.run.parameters == 170 < numbers
    node = {"max-parameters": numbers - 1, "data-root": str(tmp_path)}
    with pytest.raises(FederationError, match=f"a model of {numbers} parameters"):
        bounded(one, NodeConfig.of(node))


@pytest.mark.sweep
@pytest.mark.parametrize("name", [n for n in MODELS if takes(n, "images") and n != "logistic"])
def test_the_size_of_an_embedding_is_known_without_building_the_network(
    tmp_path: Path, name: str
) -> None:
    words = f"features.name={name} features.start=torchvision:X features.sha256={'a' * 64}"
    config = load({"method": "fedavg", "dataset": "cifar10", "set": f"{words} features.width=16"})
    info = replace(describe("cifar10"), shape=(3, 64, 64))
    # a file and not torchvision's preset, which would ask torchvision for its entry
    config = replace(config, features=config.features.model_copy(update={"start": "a.pth"}))
    found = Extractor(config, info)
    model = build(name, info.shape, 10, width=16)
    with torch.inference_mode():
        d = model.eval().embed(torch.zeros(2, *info.shape)).shape[1]
    assert found.described.shape == (d, 1, 1)
    assert found.parameters == sum(t.numel() for t in model.state_dict().values())
    assert all(tensor.is_meta for tensor in found._outline.parameters())


def test_rows_are_worked_out_once_a_machine(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = stated(tmp_path / "net")
    with caplog.at_level(logging.INFO, "flwr"):
        first, second = (division(words, tmp_path / "data").dataset for _ in range(2))
    assert caplog.text.count("1797 images through convnet, once") == 1
    assert first.checksum == second.checksum


@pytest.mark.extended
def test_the_report_speaks_of_rows_and_not_of_pictures(small: Small, tmp_path: Path) -> None:
    config = small(method="feddm", rounds=1, set=stated(tmp_path / "net"))
    page = written(run(config | {"data-dir": str(tmp_path)}))
    assert "The closest row sent is" in page.text
    assert "(root mean square, in the data's units)" in page.text
    assert "Rows by site and class" in page.text
    assert not page.all("img")


def test_a_model_of_rows_is_not_exported_as_one_of_pictures(
    small: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small(method="fedavg", rounds=1, set=stated(tmp_path / "net"))
    record = run(config | {"data-dir": str(tmp_path)})
    assert main(["export", str(record.directory), "--output", str(tmp_path / "out")]) == 2
    assert "of digits, which cannot be exported" in (capsys.readouterr().err)
