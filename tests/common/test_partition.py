"""Partitions: exact covers, deterministic, with the properties each rule promises."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from common.data.division.partitions import _draws, class_counts, partition, report
from common.data.division.stratify import Parts, validation_split
from common.data.loading import load
from common.data.published.catalogue import describe
from common.errors import DataError
from common.settings.sections import PartitionSettings

KINDS = ("iid", "dirichlet", "dirichlet_groups", "by_class", "shards", "quantity")
BALANCED = np.repeat(np.arange(10), 500)


@hypothesis.settings(deadline=None)  # a busy machine is no failure
@hypothesis.given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=150).map(np.array),
    clients=st.integers(1, 12),
    kind=st.sampled_from(KINDS),
    alpha=st.sampled_from([0.01, 0.1, 0.5, 1.0, 100.0]),
    balance=st.booleans(),
    min_size=st.integers(0, 5),
    each=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
def test_parts_are_a_disjoint_cover_or_an_error(
    labels: np.ndarray,
    clients: int,
    kind: str,
    alpha: float,
    balance: bool,
    min_size: int,
    each: int,
    seed: int,
) -> None:
    settings = PartitionSettings(
        kind=kind,
        alpha=alpha,
        balance=balance,
        min_size=min_size,
        max_draws=20,
        classes_per_client=each,
        shards_per_client=each,
    )
    reason = ""
    try:
        parts = partition(labels, clients, settings, seed)
    except DataError as error:
        reason = str(error)
    if reason:
        assert "partition." in reason or "federation.sites" in reason
        return
    assert len(parts) == clients
    assert sorted(np.concatenate(parts)) == list(range(len(labels)))
    assert all((np.diff(part) > 0).all() for part in parts)
    sized = kind in ("dirichlet", "dirichlet_groups", "quantity")
    least = max(1, min_size) if sized else 1
    assert min(map(len, parts)) >= least
    again = partition(labels, clients, settings, seed)
    assert all(np.array_equal(part, same) for part, same in zip(parts, again, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_gives_another_partition(kind: str) -> None:
    settings = PartitionSettings(kind=kind, classes_per_client=2)
    first, other = (partition(BALANCED, 10, settings, seed) for seed in (0, 1))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_iid_sizes_differ_by_one_at_most() -> None:
    parts = partition(BALANCED[:4999], 7, PartitionSettings(kind="iid"), 0)
    assert sorted(map(len, parts)) == [714] * 6 + [715]
    assert (class_counts(BALANCED, parts, 10) > 0).all()


def test_a_single_client_gets_everything() -> None:
    for kind in KINDS:
        settings = PartitionSettings(kind=kind, classes_per_client=10)
        [part] = partition(BALANCED, 1, settings, 0)
        assert np.array_equal(part, np.arange(len(BALANCED)))


def test_dirichlet_extremes() -> None:
    def counts(alpha: float) -> np.ndarray:
        parts = partition(BALANCED, 10, PartitionSettings(alpha=alpha), 0)
        return class_counts(BALANCED, parts, 10)

    np.testing.assert_allclose(counts(1e6), 50, atol=1)
    assert (counts(0.01) > 0).sum() < 25 < (counts(0.5) > 0).sum()


def test_dirichlet_has_the_law_of_its_name() -> None:
    """With two clients a class's share is Beta(alpha, alpha): variance 1 / (4 (2 alpha + 1))."""
    for alpha in (0.5, 1.0, 4.0):
        settings = PartitionSettings(alpha=alpha, balance=False)
        shares = np.concatenate(
            [
                class_counts(BALANCED, partition(BALANCED, 2, settings, seed), 10)[0] / 500
                for seed in range(100)
            ]
        )
        expected = 1 / (4 * (2 * alpha + 1))
        assert abs(shares.mean() - 0.5) < 4 * np.sqrt(expected / 1000)
        # the sample variance of 1,000 draws of a bounded variable has under 6% standard error here
        assert shares.var() == pytest.approx(expected, rel=0.2)


def test_groups_are_cut_into_equal_parts_client_by_client_and_class_by_class() -> None:
    """60 images of one class and 40 of another at two clients: who draws the 60 is closed, the other gets the 40."""
    labels = np.array([0] * 60 + [1] * 40)
    settings = PartitionSettings(kind="dirichlet_groups", alpha=1e-4)
    found = {
        str(class_counts(labels, partition(labels, 2, settings, seed), 2).tolist())
        for seed in range(20)
    }
    # the first client has the 60, of which ten are cut off to the second; or the 40, and gets ten of the 60
    assert found == {"[[50, 0], [10, 40]]", "[[10, 40], [50, 0]]"}


@pytest.mark.parametrize(("clients", "group"), [(40, 20), (40, 10), (100, 20), (7, 3), (10, 0)])
def test_groups_have_equal_parts_of_the_shuffled_images(clients: int, group: int) -> None:
    settings = PartitionSettings(kind="dirichlet_groups", alpha=0.5, group=group)
    parts = partition(BALANCED, clients, settings, 3)
    starts = -(-np.arange(clients + 1) * 5000 // clients)
    assert [len(part) for part in parts] == np.diff(starts).tolist()
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for first in range(0, clients, group or clients):
        members = parts[first : first + (group or clients)]
        size, share = sum(map(len, members)), sum(map(len, members)) / 5000
        held = np.bincount(BALANCED[np.concatenate(members)], minlength=10)
        # drawn without replacement of 500 in 5000: hypergeometric
        deviation = np.sqrt(500 * share * (1 - share) * (5000 - 500) / 4999)
        assert held.sum() == size
        assert np.abs(held - 500 * share).max() <= 4.5 * deviation


def test_a_groups_draws_have_the_law_of_dirichlet_and_its_balance_rule() -> None:
    """Shares of the first class are Beta(a, (K - 1) a): mean 1/K, variance (K - 1) / (K^2 (K a + 1))."""
    totals = np.full(4, 10_000)
    for clients, alpha in ((2, 0.5), (4, 0.1), (5, 2.0), (20, 0.01)):
        rng = np.random.default_rng(clients)
        counts = np.concatenate([_draws(totals, clients, alpha, rng) for _ in range(20)])
        assert (counts.sum(axis=1) == totals).all()
        shares = counts[:, :, 0] / 10_000
        assert shares.mean() == pytest.approx(1 / clients)
        expected = (clients - 1) / (clients**2 * (clients * alpha + 1))
        assert shares.var() == pytest.approx(expected, rel=0.06)
        before = np.cumsum(counts, axis=2) - counts
        assert (counts[before * clients >= totals.sum()] == 0).all()
        assert (counts >= 0).all()


def test_a_group_is_redrawn_until_each_client_has_half_of_its_fair_share() -> None:
    """Of a class of 75 and one of 25 at two clients, the least that balance leaves a client is 25: just enough."""
    settings = PartitionSettings(kind="dirichlet_groups", alpha=1e-4, max_draws=200)
    labels = np.array([0] * 75 + [1] * 25)
    assert [len(part) for part in partition(labels, 2, settings, 0)] == [50, 50]
    with pytest.raises(DataError, match=r"200 draws .* half of its fair share, 25 images .* 24\)"):
        partition(np.array([0] * 76 + [1] * 24), 2, settings, 0)


def test_the_limit_of_draws_changes_no_division_that_it_permits() -> None:
    few, many = (
        PartitionSettings(kind="dirichlet_groups", alpha=0.1, group=10, max_draws=draws)
        for draws in (200, 100_000)
    )
    for one, other in zip(*(partition(BALANCED, 20, its, 1) for its in (few, many)), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.5])
def test_balance_rule(alpha: float) -> None:
    """Going through the classes, a client that already holds N/K images gets no more."""
    broken_without = 0
    for seed in range(10):
        for balance in (True, False):
            settings = PartitionSettings(alpha=alpha, balance=balance)
            counts = class_counts(BALANCED, partition(BALANCED, 10, settings, seed), 10)
            before = np.cumsum(counts, axis=1) - counts
            breaks = bool((counts[before >= len(BALANCED) / 10] > 0).any())
            assert not (balance and breaks)
            broken_without += breaks
    assert broken_without > 0


def test_quantity_skew_is_in_sizes_not_in_classes() -> None:
    parts = partition(BALANCED, 5, PartitionSettings(kind="quantity", alpha=0.5), 0)
    sizes = np.array([len(part) for part in parts])
    assert sizes.max() > 3 * sizes.min()
    shares = class_counts(BALANCED, parts, 10) / sizes[:, None]
    assert np.abs(shares[sizes > 500] - 0.1).max() < 0.05


def test_by_class_gives_each_client_its_number_of_classes() -> None:
    for each, clients in ((1, 10), (2, 10), (3, 7), (10, 4)):
        settings = PartitionSettings(kind="by_class", classes_per_client=each)
        counts = class_counts(BALANCED, partition(BALANCED, clients, settings, 0), 10)
        assert ((counts > 0).sum(axis=1) == each).all()
        holders = (counts > 0).sum(axis=0)
        assert holders.max() - holders.min() <= 1
        for column in counts.T:  # a class is divided evenly over its holders
            assert np.ptp(column[column > 0]) <= 1


def test_shards_are_runs_of_sorted_labels() -> None:
    settings = PartitionSettings(kind="shards", shards_per_client=2)
    counts = class_counts(BALANCED, partition(BALANCED, 20, settings, 0), 10)
    # 40 shards of 125 images, four a class: a client has one or two classes
    assert set(counts.sum(axis=1)) == {250}
    assert set((counts > 0).sum(axis=1)) <= {1, 2}
    assert set(counts.ravel()) <= {0, 125, 250}


def test_real_labels_at_the_papers_extreme(tmp_path: Path) -> None:
    labels = load("digits", tmp_path).train.labels
    labels = labels[validation_split(labels, 0.1, 0)[0]]
    for balance in (True, False):
        settings = PartitionSettings(alpha=0.01, balance=balance)
        for seed in range(5):
            parts = partition(labels, 10, settings, seed)
            assert min(map(len, parts)) >= 10


def test_a_class_smaller_than_its_holders() -> None:
    settings = PartitionSettings(kind="by_class", classes_per_client=1)
    with pytest.raises(DataError, match="without an image"):
        partition(np.array([0] * 20 + [1]), 10, settings, 0)


def test_one_class_dropping_out_is_no_obstacle() -> None:
    labels = np.repeat([0, 2, 5], 50)
    for kind in KINDS:
        parts = partition(labels, 3, PartitionSettings(kind=kind), 0)
        assert class_counts(labels, parts, 6).sum(axis=0).tolist() == [50, 0, 50, 0, 0, 50]


def test_counts_and_report_by_hand() -> None:
    labels = np.array([0, 0, 1, 2, 2, 2])
    counts = class_counts(labels, [np.array([0, 2]), np.array([1, 3, 4, 5])], 4)
    assert counts.tolist() == [[1, 1, 0, 0], [1, 0, 3, 0]]
    assert report(counts, ("cat", "dog", "bird", "fish")).splitlines() == [
        "site         images  cat  dog  bird  fish",
        "partition-0       2    1    1     0     0",
        "partition-1       4    1    0     3     0",
        "all               6    2    1     3     0",
    ]


def test_report_of_many_classes_is_narrow() -> None:
    counts = np.zeros((2, 100), dtype=np.int64)
    counts[0, 3], counts[1, 99], counts[1, 0] = 7, 30, 2
    text = report(counts, describe("cifar100").classes)
    assert text.splitlines()[1].split() == ["partition-0", "7", "1", "bear", "7"]
    assert text.splitlines()[2].split() == ["partition-1", "32", "2", "worm", "30"]
    assert max(map(len, text.splitlines())) < 80


@hypothesis.settings(deadline=None)
@hypothesis.given(
    owners=st.lists(st.integers(0, 9), min_size=1, max_size=80).map(np.array),
    clients=st.integers(1, 12),
    seed=st.integers(0, 2**32),
)
def test_natural_clients_hold_all_of_one_owner_each(
    owners: np.ndarray, clients: int, seed: int
) -> None:
    settings = PartitionSettings(kind="natural")
    present = set(owners.tolist())
    reason = ""
    try:
        parts = partition(np.zeros_like(owners), clients, settings, seed, owners)
    except DataError as error:
        reason = str(error)
    if clients > len(present):
        assert f"has {len(present)} owners" in reason or "each needs one at least" in reason
        return
    held = [owners[part[0]] for part in parts]
    assert held == sorted(set(held)), "in the owners' order, nobody twice"
    assert set(held) <= present
    assert len(parts) == clients
    for owner, part in zip(held, parts, strict=True):
        assert part.tolist() == [i for i, other in enumerate(owners) if other == owner]
    again = partition(np.zeros_like(owners), clients, settings, seed, owners)
    assert all(np.array_equal(part, same) for part, same in zip(parts, again, strict=True))


def test_natural_draws_every_owner_alike() -> None:
    owners, settings = np.repeat(np.arange(20), 3), PartitionSettings(kind="natural")
    drawn = np.zeros(20)
    for seed in range(400):
        for part in partition(owners, 5, settings, seed, owners):
            drawn[owners[part[0]]] += 1
    # each is one of 5 among 20: binomial(400, 1/4), standard deviation 8.7
    assert np.abs(drawn - 100).max() < 4 * 8.7


def test_natural_skips_an_owner_of_whom_nothing_is_left() -> None:
    owners = np.array([7, 0, 7, 4])
    parts = partition(np.zeros(4, int), 3, PartitionSettings(kind="natural"), 0, owners)
    assert [part.tolist() for part in parts] == [[1], [3], [0, 2]]
    with pytest.raises(DataError, match=r"has 3 owners .* for 4 sites; set .* to 3 or less"):
        partition(np.zeros(4, int), 4, PartitionSettings(kind="natural"), 0, owners)


# ---- parts in one array are what a list of arrays is -------------------------------------------------


LIST = [np.array([4, 7]), np.array([0]), np.array([], dtype=np.int64), np.array([1, 2, 9])]


def test_they_read_as_the_list() -> None:
    parts = Parts.of(LIST)
    assert len(parts) == 4
    assert [part.tolist() for part in parts] == [part.tolist() for part in LIST]
    assert [parts[i].tolist() for i in (0, 3, -1, -4)] == [[4, 7], [1, 2, 9], [1, 2, 9], [4, 7]]
    assert [part.tolist() for part in parts[1:]] == [[0], [], [1, 2, 9]]
    for outside in (4, -5):
        with pytest.raises(IndexError):
            parts[outside]


def test_they_are_numbered_in_a_larger_whole() -> None:
    whole = Parts.of(LIST).within(np.arange(10) * 10)
    assert [part.tolist() for part in whole] == [[40, 70], [0], [], [10, 20, 90]]


def test_ten_thousand_are_no_more_than_two_arrays() -> None:
    """Views are made when they are asked for: nothing is held for a part but where it ends."""
    labels = np.arange(30_000) % 10
    parts = partition(labels, 10_000, PartitionSettings(kind="iid"), seed=0)
    held = [value for value in vars(parts).values() if isinstance(value, np.ndarray)]
    assert [array.shape for array in held] == [(30_000,), (10_000,)]
    assert len(vars(parts)) == 2
    assert parts[5] is not parts[5]
    assert np.shares_memory(parts[5], held[0])
    assert sorted(np.concatenate(parts).tolist()) == list(range(30_000))
