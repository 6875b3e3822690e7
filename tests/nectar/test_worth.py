"""What an accuracy is worth in labelled images at the server: by hand, and in a report."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from small import SMALL

import nectar
from benchmarks.standings import labelled
from common.config.text import parse_set
from nectar.records.record import RunRecord
from nectar.report import tables as measured
from nectar.report.tables import FILE, curve_of, worth

CURVE = {50: 0.3, 100: 0.4, 200: 0.5, 500: 0.5, 1000: 0.45, 2000: 0.6}


@pytest.mark.parametrize(
    ("accuracy", "said"),
    [
        (0.2999, "< 50"),
        (0.3, "50"),
        (0.35, "71"),  # the root of 50 times 100
        (0.4, "100"),
        (0.425, "120"),  # 100 times the fourth root of 2: 118.9
        (0.5, "200"),  # where it is first reached, although 1,000 images fell short of it
        (0.55, "1,400"),  # half the way from 1,000, which count as no worse than 500, to 2,000
        (0.6, "2,000"),
        (0.6001, "> 2,000"),
        (float("nan"), ""),
    ],
)
def test_between_two_points_it_goes_with_the_logarithm(accuracy: float, said: str) -> None:
    assert worth(accuracy, CURVE) == said
    assert worth(accuracy, {}) == ""


def test_the_committed_curves_have_three_seeds_at_each_point() -> None:
    with FILE.open(newline="") as file:
        lines = list(csv.DictReader(file))
    places: dict[tuple[str, ...], set[str]] = {}
    for line in lines:
        place = line["dataset"], line["images"]
        places.setdefault(place, set()).add(line["seed"])
    assert {len(seeds) for seeds in places.values()} == {3}
    assert list(curve_of("digits")) == [50, 100, 200, 500, 718]
    assert list(curve_of("cifar10")) == [50, 200, 500, 2000]


@pytest.mark.extended
def test_a_report_says_it_where_the_curve_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = nectar.run("fedavg", rounds=1, output_dir=tmp_path, progress=False, **parse_set(SMALL))
    assert labelled(RunRecord.open(run.directory)) == "144"
    assert "images at a server that asks" in run.report().read_text()
    curve = tmp_path / "worth.csv"
    low, high = run.accuracy - 0.1, run.accuracy + 0.1
    curve.write_text(f"dataset,images,seed,accuracy\ndigits,100,0,{low}\ndigits,400,0,{high}\n")
    monkeypatch.setattr(measured, "FILE", curve)
    curve_of.cache_clear()
    try:
        page = run.report().read_text()
    finally:
        curve_of.cache_clear()
    assert "200 labelled images at a server that asks no site" in page
