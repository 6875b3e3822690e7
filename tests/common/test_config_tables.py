"""Cells of tables: what departs from what, their names and small variants, and ``base``."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.config import layers as layers_module
from common.config.loading import load
from common.config.tables import experiment_names, is_experiment


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a bare folder of tables, beside the data sets digits and mnist, that load reads instead."""
    for kind in ("dataset", "table"):
        (tmp_path / kind).mkdir()
    (tmp_path / "dataset" / "digits.yaml").touch()
    (tmp_path / "dataset" / "mnist.yaml").write_text("seed: 1\nrounds: 1")
    monkeypatch.setattr(layers_module, "CONF", tmp_path)
    return tmp_path / "table"


GRID = """
name: a
base: {dataset: mnist, rounds: 9, partition: {alpha: 2}, model.width: 2}
small: {rounds: 3, data.images: 100}
columns:
  - x: {model.depth: 3, small: {model.width: 1, rounds: 2}}
    y: {rounds: 8}
  - "": {}
    two: {partition.alpha: 3, small: {data.images: 50}}
"""


def test_cells_are_the_product_of_the_axes_and_each_has_a_small_variant(conf: Path) -> None:
    (conf / "a-1.yaml").write_text(GRID)
    cells = ["a-x", "a-x-two", "a-y", "a-y-two"]
    assert experiment_names() == sorted(cell + end for cell in cells for end in ("", "-small"))
    assert is_experiment("a-x-two-small")
    assert not is_experiment("a-two")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a-x", (9, 0, 2.0, 2, 3)),
        ("a-x-two", (9, 0, 3.0, 2, 3)),
        ("a-y-two", (8, 0, 3.0, 2, 2)),
        ("a-x-small", (2, 100, 2.0, 1, 3)),
        ("a-x-two-small", (2, 50, 3.0, 1, 3)),
        ("a-y-small", (8, 100, 2.0, 2, 2)),
    ],
)
def test_base_then_small_then_each_column_with_its_own_small(
    conf: Path, name: str, expected: tuple[float, ...]
) -> None:
    """A swept setting wins over the small departure: column y keeps its rounds."""
    (conf / "a-1.yaml").write_text(GRID)
    config = load({"experiment": name, "set": "model.depth=2" if "y" in name else ""})
    found = (config.rounds, config.data.images, config.partition.alpha)
    assert (*found, config.model.width, config.model.depth) == expected
    assert (config.experiment, config.dataset, config.seed) == (name, "mnist", 1)


def test_the_origin_names_the_file_and_the_part_of_it(conf: Path) -> None:
    (conf / "a-1.yaml").write_text(GRID)
    (conf / "a-2.yaml").write_text("name: a-x\nbase: a-x\ncolumns: [{z: {seed: 4}}]")
    origin = load({"experiment": "a-x-z-small", "set": "model.depth=2"}).origin
    assert {key: where for key, where in origin.items() if not key.endswith("-dir")} == {
        "experiment": "the command line",
        "dataset": "conf/table/a-1.yaml",
        "seed": "conf/table/a-2.yaml (z)",
        "rounds": "conf/table/a-1.yaml (x, small)",
        "partition.alpha": "conf/table/a-1.yaml",
        "model.width": "conf/table/a-1.yaml (x, small)",
        "model.depth": "the command line",
        "data.images": "conf/table/a-1.yaml (small)",
    }


def test_a_departure_with_a_base_starts_there_instead(conf: Path) -> None:
    """A column's from another cell; a small one's from nothing."""
    (conf / "a.yaml").write_text(
        "name: a\nbase: {rounds: 3, seed: 5}\nsmall: {base: none, seed: 6}\n"
        "columns: [{x: {model.width: 3}, y: {base: b-b, model.depth: 3}}]"
    )
    (conf / "b.yaml").write_text("name: b-b\nbase: {rounds: 4}\nsmall: {seed: 7}")
    x, y, x_small = (load({"experiment": name}) for name in ("a-x", "a-y", "a-x-small"))
    assert (x.rounds, x.seed, x.model.width) == (3, 5, 3)
    assert (y.rounds, y.seed, y.model.depth) == (4, 0, 3)
    assert (x_small.rounds, x_small.seed, x_small.model.width) == (20, 6, 3)
    y_small = load({"experiment": "a-y-small"})
    assert (y_small.rounds, y_small.seed, y_small.model.depth) == (4, 7, 3)


def test_a_cell_has_a_small_variant_where_what_it_departs_from_has_one(conf: Path) -> None:
    (conf / "a.yaml").write_text("name: a\nsmall: {}")
    (conf / "b.yaml").write_text("name: b\ncolumns: [{x: {base: a}, y: {}}]")
    assert experiment_names() == ["a", "a-small", "b-x", "b-x-small", "b-y"]


def test_the_same_run_written_with_a_base_or_without_is_the_same_run(conf: Path) -> None:
    (conf / "a.yaml").write_text("name: a\nbase: {rounds: 3}")
    (conf / "b.yaml").write_text("name: b\nbase: {base: a, seed: 4}")
    (conf / "c.yaml").write_text("name: c\nbase: {rounds: 3, seed: 4}")
    based, plain = load({"experiment": "b"}), load({"experiment": "c"})
    assert based.digest() == plain.digest()
    assert load(based.to_run_config()) == based
