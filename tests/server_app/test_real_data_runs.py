"""Nothing works on digits only: one round of every method on the larger sets, through the real loaders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from data_files import cifar_bytes, forget_loaded, write_source
from federation import run
from real_data import data_directory
from small import Small

from nectar.records.record import RunRecord

#: seconds a round, not minutes
QUICK = (
    "federation.sites=10 federation.participation=0.2 partition.alpha=0.1 model.depth=3 "
    "evaluation.batch=1000 data.validation=0.02"
)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "shape", "method"),
    [("mnist", (1, 28, 28), "real"), ("cifar10", (3, 32, 32), "feddm")],
)
def test_a_round_on_the_published_sets(
    small: Small, name: str, shape: tuple[int, int, int], method: str
) -> None:
    config = small(method=method, dataset=name, rounds=1, set=QUICK)
    record = run(config | {"data-dir": str(data_directory(name))})
    line = record.metrics()[1]
    assert line["test"]["examples"] == 10_000
    assert len(line["accepted"]) == 2
    assert line["rejected"] == {}
    partition = json.loads((record.directory / "partition.json").read_text())["sites"]
    # from real images a class of one sends that one, and no image twice
    images = sum(min(2, n) for s in line["accepted"] for n in partition[s]["classes"])
    assert line["floats_up"] == images * int(np.prod(shape))


@pytest.mark.extended
@pytest.mark.parametrize("method", ["feddm", "fedavg"])
def test_a_round_on_files_in_the_format_of_cifar_100(
    small: Small, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str
) -> None:
    rng = np.random.default_rng(0)
    parts = [
        cifar_bytes(
            rng.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8),
            [i % 100 for i in range(n)],
            "fine_labels",
        )
        for n in (400, 100)
    ]
    forget_loaded(monkeypatch)
    write_source(monkeypatch, tmp_path / "data", "cifar100", parts)
    config = small(method=method, dataset="cifar100", rounds=1)
    line = run(config | {"data-dir": str(tmp_path / "data")}).metrics()[1]
    assert len(line["test"]["per_class"]) == 100
    assert line["rejected"] == {}


@pytest.mark.extended
@pytest.mark.parametrize("size", [32, 64])
def test_a_round_on_photographs_where_sites_hold_different_classes(small: Small, size: int) -> None:
    """Five classes, one a site: each sends images of its own class alone, at the size asked for."""
    words = (
        f"federation.sites=5 partition.kind=by_class partition.classes_per_client=1 images.size={size} "
        "model.depth=3"
    )
    config = small(dataset="flowers160", rounds=1, set=words)
    record = run(config | {"data-dir": str(data_directory("flowers160"))})
    line = record.metrics()[1]
    assert line["test"]["examples"] == 100
    assert line["rejected"] == {}
    _, sets = RunRecord.open(record.directory).synthetic()
    assert {images.images.shape[1:] for images in sets.values()} == {(3, size, size)}
    labels = [set(images.labels.tolist()) for images in sets.values()]
    assert all(len(held) == 1 for held in labels)
    assert set.union(*labels) == {0, 1, 2, 3, 4}
