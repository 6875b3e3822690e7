"""What an accuracy is worth in labelled images at the server: by hand, and in a report."""

from __future__ import annotations

import csv

import pytest

from benchmarks.standings import FILE, curve_of, worth

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
