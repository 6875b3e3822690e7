"""Small data sets written in the publishers' formats, for tests of the loaders."""

from __future__ import annotations

import hashlib
import json
import pickle
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from common.data import loading
from common.data.published.sources import SOURCES, DownloadSource


def idx_bytes(array: np.ndarray) -> bytes:
    """Write an idx file by the format's own description."""
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def cifar_bytes(images: np.ndarray, labels: list[int], key: str) -> bytes:
    """Write a CIFAR batch: a pickle of protocol 2, rows of 1024 red, green and blue values."""
    rows = images.reshape(len(images), 3072)
    return pickle.dumps({"data": rows, key: labels, "batch_label": b"a test's own"}, protocol=2)


def write_source(
    monkeypatch: pytest.MonkeyPatch, data_dir: Path, name: str, contents: list[bytes]
) -> DownloadSource:
    """Put ``contents`` where ``name``'s files lie, and make their checksums the ones expected."""
    files = tuple(
        replace(file, md5=hashlib.md5(content).hexdigest())
        for file, content in zip(SOURCES[name].files, contents, strict=True)
    )
    source = replace(SOURCES[name], files=files)
    for file, content in zip(files, contents, strict=True):
        (data_dir / file.path).parent.mkdir(parents=True, exist_ok=True)
        (data_dir / file.path).write_bytes(content)
    monkeypatch.setitem(SOURCES, name, source)
    return source


def write_shard(path: Path, users: dict[str, tuple[list[object], list[object]]]) -> None:
    """Write a LEAF shard: the samples and the targets of each user."""
    content = {
        "users": list(users),
        "num_samples": [len(x) for x, _ in users.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in users.items()},
    }
    write_json(path, content)


def write_vocabulary(data_dir: Path, words: list[str]) -> None:
    """Write LEAF's vocabulary of Reddit: ``words`` get the ids 2, 3, ..."""
    tokens = ["<PAD>", "<UNK>", *words]
    ids = {token: number for number, token in enumerate(tokens)}
    content = {"vocab": ids, "size": len(ids), "unk_symbol": 1, "pad_symbol": 0}
    write_json(data_dir / "leaf/reddit/vocab/reddit_vocab.json", content)


def write_json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def small_mnist(train: int = 30, test: int = 10) -> list[bytes]:
    """Return the four files of a small set in MNIST's format, label i % 10 for image i."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (train + test, 28, 28), dtype=np.uint8)
    labels = np.arange(train + test) % 10
    parts = (images[:train], labels[:train], images[train:], labels[train:])
    return [idx_bytes(part) for part in parts]


def forget_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process load as a new one would."""
    monkeypatch.setattr(loading, "_loaded", {})


@pytest.fixture
def fresh_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No data set is loaded, and a user's cache has no store."""
    forget_loaded(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def fresh_data(fresh_cache: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Besides, the data directory is the test's own."""
    monkeypatch.setenv("NECTAR_DATA", str(tmp_path / "data"))
