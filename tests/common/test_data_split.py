"""The validation share: stratified, exact in number, disjoint from what stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.config.loading import load as configured
from common.data.division.stratify import subset, validation_split
from common.division import Division
from common.errors import DataError

label_lists = st.lists(st.integers(0, 6), min_size=1, max_size=200).map(np.array)


@settings(deadline=None)  # a busy machine is no failure
@given(label_lists, st.floats(0, 0.5), st.integers(0, 2**32))
def test_cut_is_disjoint_and_stratified(labels: np.ndarray, share: float, seed: int) -> None:
    stays, held = validation_split(labels, share, seed)
    assert sorted([*stays, *held]) == list(range(len(labels)))
    assert (np.diff(stays) > 0).all()
    assert (np.diff(held) > 0).all()
    totals, cut = np.bincount(labels, minlength=7), np.bincount(labels[held], minlength=7)
    # within one of the exact proportion, which is that of the rounded total
    exact = totals * round(share * len(labels)) / len(labels)
    assert (np.abs(cut - exact) < 1 + 1e-9).all()
    assert (totals - cut)[totals > 0].min() >= 1
    if totals[totals > 0].min() > 2:
        assert len(held) == round(share * len(labels))


def test_share_depends_on_the_seed_alone() -> None:
    labels = np.arange(100) % 10
    first, again, other = (validation_split(labels, 0.2, seed)[1] for seed in (5, 5, 6))
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()


def test_no_share_keeps_everything() -> None:
    stays, held = validation_split(np.array([0, 1, 1]), 0.0, 0)
    assert stays.tolist() == [0, 1, 2]
    assert len(held) == 0


def test_classes_of_one_image_stay_in_training() -> None:
    _, held = validation_split(np.arange(10), 0.5, 0)
    assert len(held) == 0


@pytest.mark.parametrize("share", [-0.1, 0.51, float("nan")])
def test_share_out_of_range(share: float) -> None:
    with pytest.raises(DataError, match=r"must be in \[0, 0\.5\]"):
        validation_split(np.array([0, 1]), share, 0)


@pytest.mark.parametrize("count", [10, 130, 719, 1000, 1436])
def test_a_subset_is_stratified_and_drawn_by_the_seed(count: int) -> None:
    """Each class within one image of its share, on both sides of half; another seed draws others."""
    labels = np.repeat(np.arange(10), [143, 144] * 5).astype(np.int64)[:1435]
    labels = np.append(labels, [0, 0])
    drawn = subset(labels, count, seed=1)
    assert len(drawn) == count
    assert len(np.unique(drawn)) == count
    assert np.all(np.diff(drawn) > 0)
    share = np.bincount(labels) * count / len(labels)
    assert np.all(np.abs(np.bincount(labels[drawn], minlength=10) - share) <= 1)
    assert np.array_equal(drawn, subset(labels, count, seed=1))
    assert not np.array_equal(drawn, subset(labels, count, seed=2))


def test_a_subset_of_all_or_of_more() -> None:
    labels = np.zeros(5, dtype=np.int64)
    assert subset(labels, 0, 0).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(DataError, match=r"data\.images=6 is more than the 5 training images"):
        subset(labels, 6, 0)


# ---- the validation split is cut before or after the division ----------------------------------------


def digits(tmp_path: Path, **given: object) -> Division:
    words = " ".join(f"{key.replace('__', '.')}={value}" for key, value in given.items())
    return Division(configured({"dataset": "digits", "data-dir": str(tmp_path), "set": words}))


@pytest.mark.parametrize("kind", ["dirichlet", "dirichlet_groups", "iid", "by_class", "quantity"])
def test_cut_after_the_division_it_leaves_that_of_all_images(kind: str, tmp_path: Path) -> None:
    after, before, whole = (
        digits(tmp_path, partition__kind=kind, data__validation_cut=cut, data__validation=share)
        for cut, share in (("after", 0.1), ("before", 0.1), ("before", 0.0))
    )
    held = after.validation
    assert np.array_equal(held, before.validation), "the same images are held back"
    for left, all_of_it in zip(after.partition(10), whole.partition(10), strict=True):
        assert np.array_equal(left, np.setdiff1d(all_of_it, held))
    together = np.concatenate([*after.partition(10), held])
    assert sorted(together) == list(range(1437))
    first = np.concatenate(before.partition(10))
    assert sorted(first) == sorted(np.setdiff1d(np.arange(1437), held))


def test_a_site_of_which_all_is_held_back_is_refused(tmp_path: Path) -> None:
    division = digits(
        tmp_path,
        data__images=60,
        data__validation=0.5,
        data__validation_cut="after",
        partition__kind="iid",
        federation__sites=30,
    )
    with pytest.raises(DataError, match=r"data\.validation_cut=after leaves a site without images"):
        division.partition(30)
