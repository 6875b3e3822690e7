"""Every column of every table can be divided over its sites, at the paper's size and small, by labels alone.

The labels are made up, as many of each class as is published, but for digits, which come with scikit-learn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparing import options_of

from common import division as divisions
from common.config import privacy_plan
from common.config.layers import names
from common.config.loading import load
from common.config.resolved import Config
from common.config.tables import TABLE
from common.data import loading
from common.data.published.catalogue import describe
from common.division import Division
from common.samples.dataset import Dataset, Split
from common.settings.images import ImagesSettings
from nectar.arguments import parse_arguments
from nectar.comparison.paper_table import read_paper_table
from nectar.comparison.request import Cell, parse

TABLES = names(TABLE)

#: training images of a class, as published; ImageNet has up to 1,300, and flowers160 has no draw to go by them
COUNTS = {
    "mnist": (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
    "fashionmnist": (6000,) * 10,
    "cifar10": (5000,) * 10,
    "cifar100": (500,) * 100,
    **dict.fromkeys(
        (f"image{word}" for word in ("food", "fruit", "meow", "misc", "woof")), (1300,) * 10
    ),
    "flowers160": (500,) * 5,
}

#: writers, people and kinds of sites of the sets whose samples have owners
OWNERS = {"dsprites": 12, "femnist": 300, "reddit": 813, "reddit2k": 694}


@cache
def made_up(name: str, directory: Path, images: ImagesSettings, *given: Any) -> Dataset:
    if name == "digits":
        return loading.load(name, directory)
    info = describe(name, images)
    if name in OWNERS:
        owners = np.repeat(np.arange(OWNERS[name]), 1000)
        shape = (len(owners), *info.shape[:1]) if info.kind == "text" else (len(owners),)
        labels = np.zeros(shape, dtype=np.int64)
    else:
        owners, labels = None, np.repeat(np.arange(len(COUNTS[name])), COUNTS[name])
        labels = np.random.default_rng(0).permutation(labels)
    pixels = np.broadcast_to(np.zeros(1, dtype=np.uint8), (len(labels), *info.shape))
    empty = Split(pixels[:1], labels[:1])
    return Dataset(info, Split(pixels, labels, owners), empty, "made up")


@pytest.fixture(autouse=True)
def _labels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divisions, "load", made_up)
    monkeypatch.setattr(privacy_plan, "noise_for", lambda *_: 1.0)  # which divides nothing


def divided_as(cells: tuple[Cell, ...]) -> Iterator[Config]:
    """Yield a configuration for every division of a table's rows, reported or searched."""
    found = set()
    for cell in cells:
        for row in cell.variants:
            for settings in {(), tuple(cell.reported_by(row))}:
                config = load(parse_arguments(cell.words(row.with_settings(settings), 0)))
                key = (
                    config.dataset,
                    config.partition,
                    config.data.model_dump_json(),
                    config.federation.sites,
                )
                if str(key) not in found:
                    found.add(str(key))
                    yield replace(config, seed=cell.seeds[0])


@pytest.mark.extended
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(
            f"table={name}{small}",
            marks=[pytest.mark.extended] * (bool(small) or name not in ("fedssyn-a1", "feddm-2")),
        )
        for name in TABLES
        for small in ("", " --small")
        if not small or read_paper_table(name).small
    ],
)
def test_every_column_can_be_divided(words: str) -> None:
    for config in divided_as(parse(options_of(words.split())).cells):
        division, sites = Division(config), config.federation.sites
        parts, held = division.partition(sites), division.validation
        assert len(parts) == sites
        assert min(map(len, parts)) > 0
        if config.partition.kind == "natural":
            continue
        together = np.concatenate([*parts, held])
        assert len(together) == (config.data.images or len(division.dataset.train))
        assert len(np.unique(together)) == len(together)


@pytest.mark.sweep
@pytest.mark.parametrize("cell", ["cifar10-alpha0.1-clients40", "cifar100-alpha0.01-clients100"])
@pytest.mark.parametrize("end", ["", "-small"])
def test_fedssyns_sites_have_n_over_k_images_and_make_as_many(cell: str, end: str) -> None:
    """Before a tenth is held back, which leaves the division as it is."""
    config = load({"experiment": f"fedssyn-{cell}{end}"})
    sites = config.federation.sites
    fair = (config.data.images or 50_000) // sites
    assert config.settings.model_dump()["size"] == fair
    whole = Division(replace(config, data=config.data.model_copy(update={"validation": 0.0})))
    assert {len(part) for part in whole.partition(sites)} == {fair}
    cut = Division(config)
    held = np.zeros(50_000, dtype=bool)
    held[cut.validation] = True
    assert held.sum() == fair * sites // 10
    for all_of_it, left in zip(whole.partition(sites), cut.partition(sites), strict=True):
        assert np.array_equal(all_of_it[~held[all_of_it]], left)


@pytest.mark.parametrize("name", ["feddm-2", "feddgm-3", "feddpms-2"])
def test_searched_and_reported_runs_have_one_division(name: str) -> None:
    """Of a searched run each site has what it has of the reported one, but for what is held back."""
    cell = parse(options_of([f"table={name}"])).cells[0]
    assert cell.reported == ("data.validation=0",)
    row = cell.variants[0]
    reported, searched = (
        Division(load(parse_arguments(cell.words(row.with_settings(settings), 3))))
        for settings in (cell.reported_by(row), ())
    )
    sites = reported.config.federation.sites
    assert not len(reported.validation)
    assert len(searched.validation)
    for whole, left in zip(reported.partition(sites), searched.partition(sites), strict=True):
        assert np.array_equal(np.setdiff1d(whole, searched.validation), left)
