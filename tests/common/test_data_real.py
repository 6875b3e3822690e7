"""The published files themselves, where NECTAR_DATA has them (CI must)."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import forget_loaded

from common.data.loading import load
from common.data.published.sources import SOURCES
from common.samples.dataset import Dataset
from common.samples.inputs import samples


def _real(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Dataset:
    """Load a published set, through a store of the test's own."""
    data_dir = Path(os.environ.get("NECTAR_DATA") or tmp_path)
    if missing := SOURCES[name].missing(data_dir):
        reason = f"NECTAR_DATA has no {missing[0].path}"
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    forget_loaded(monkeypatch)
    for file in SOURCES[name].files:
        (tmp_path / file.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file.path).symlink_to((data_dir / file.path).resolve())
    return load(name, tmp_path)


# The classes' sizes as the publishers state them.
_MNIST_TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
_MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "train", "test"),
    [
        ("mnist", _MNIST_TRAIN, _MNIST_TEST),
        ("fashionmnist", [6000] * 10, [1000] * 10),
        ("cifar10", [5000] * 10, [1000] * 10),
    ],
)
def test_published_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, train: list[int], test: list[int]
) -> None:
    data = _real(name, monkeypatch, tmp_path)
    assert np.bincount(data.train.labels).tolist() == train
    assert np.bincount(data.test.labels).tolist() == test
    assert data.train.images.dtype == np.uint8
    assert data.train.images.shape[1:] == data.info.shape
    everything = samples(data.train, data.info)
    batches = [everything.inputs(slice(i, i + 1000)) for i in range(0, len(everything), 1000)]
    means = torch.stack([x.mean((0, 2, 3)) for x in batches]).double()
    squares = torch.stack([x.square().mean((0, 2, 3)) for x in batches]).double()
    assert float(means.mean(0).abs().max()) < 1e-3
    assert float((squares.mean(0) - 1).abs().max()) < 2e-3


@pytest.mark.extended
def test_class_names_are_the_publishers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = _real("cifar10", monkeypatch, tmp_path)
    meta = Path(os.environ["NECTAR_DATA"]) / "cifar-10-batches-py/batches.meta"
    if not meta.is_file():
        pytest.skip("NECTAR_DATA has no batches.meta")
    places = [meta.read_bytes().index(name.encode()) for name in data.info.classes]
    assert places == sorted(places)
