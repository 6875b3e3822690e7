"""What one site, or two, can do to a secret sum by lying: rounds that go on, rounds that fail, and who is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from federation import run, same_end
from secret_liars import (
    Lie,
    LyingGrid,
    accusing,
    equal_keys,
    keys_of_first,
    old_keys_of_first,
    rubbish,
    same_point,
)
from secret_sites import KEYS, SHARES, TRAIN, DroppingGrid
from small import Small

from common.errors import FederationError
from server_app.record import Record


def lied(
    small: Small, sites: int, lies: Mapping[int, Lie], words: str = "", rounds: int = 3
) -> tuple[Record, LyingGrid]:
    """Run with some liars, and return the record and the grid."""
    grids: list[LyingGrid] = []

    class Noted(LyingGrid):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            grids.append(self)

    settings = f"federation.sites={sites} federation.secret=on {words}"
    record = run(small(method="fedavg", rounds=rounds, set=settings), Noted, lies=lies)
    return record, grids[0]


def without(small: Small, sites: int, gone: set[int], rounds: int = 3) -> Record:
    """Run without some sites, in the same numbers without masks."""
    settings = f"federation.sites={sites} federation.secret=plain"
    drops = {(TRAIN, number): gone for number in range(1, rounds + 1)}
    return run(small(method="fedavg", rounds=rounds, set=settings), DroppingGrid, drops=drops)


def in_totals(record: Record) -> list[int]:
    return [line["notes"]["secret"]["sites"] for line in record.metrics()[1:]]


def named(record: Record) -> list[dict[str, str]]:
    return [line["rejected"] for line in record.metrics()[1:]]


# ---- keys -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lies", "out"),
    [
        ({4: equal_keys}, {4}),
        ({4: keys_of_first}, {0, 4}),
        ({4: same_point}, {0, 4}),
        ({3: keys_of_first, 4: keys_of_first}, {0, 3, 4}),
    ],
)
def test_keys_that_are_no_sites_alone_are_asked_for_again_and_then_left_out(
    small: Small, lies: Mapping[int, Lie], out: set[int]
) -> None:
    """Whoever had a key first is not told from who came later, and both are out of that round alone."""
    sites = 3 * len(out) + 3
    record, grid = lied(small, sites, lies, "federation.secret_colluders=0")
    assert in_totals(record) == [sites - len(out)] * 3
    for rejected in named(record):
        assert {*rejected} == {f"partition-{i}" for i in out}
        assert all("keys are another site's too" in why for why in rejected.values())
    assert same_end(record, without(small, sites, out))
    assert grid.asked.count((KEYS, 1)) == 1, "an honest site is asked for keys once"


def test_a_key_that_was_copied_before_costs_its_first_owner_nothing(small: Small) -> None:
    """Asked again, it has another; who gives its old one has no private key to it, and cannot be one of the roll."""
    record, _ = lied(small, 5, {4: old_keys_of_first}, rounds=2)
    assert in_totals(record) == [4, 4]
    assert [{*rejected} for rejected in named(record)] == [{"partition-4"}] * 2
    assert same_end(record, without(small, 5, {4}, rounds=2))


# ---- shares -----------------------------------------------------------------------------------------


def test_rubbish_for_all_is_found_and_the_round_goes_on_without_its_sender(small: Small) -> None:
    record, grid = lied(small, 5, {2: rubbish()})
    assert in_totals(record) == [4, 4, 4]
    for rejected in named(record):
        assert {*rejected} == {"partition-2"}
        assert "cannot read the shares that it has sealed" in rejected["partition-2"]
    assert same_end(record, without(small, 5, {2}))
    assert grid.asked.count((SHARES, 0)) == 6, "each round has two attempts"


@pytest.mark.parametrize("sites", [5, 7])
def test_rubbish_for_one_expels_nobody(small: Small, sites: int) -> None:
    record, grid = lied(small, sites, {2: rubbish(0)})
    assert in_totals(record) == [sites] * 3
    assert named(record) == [{}, {}, {}]
    assert same_end(record, without(small, sites, set()))
    assert grid.asked.count((SHARES, 0)) == 3


def test_rubbish_for_more_than_lie_leaves_its_sender_out_of_the_same_attempt(small: Small) -> None:
    """Two of ten cannot read it, which is one more than may lie. The seven others open its key."""
    words = "federation.secret_colluders=1"
    record, grid = lied(small, 10, {2: rubbish(0, 1)}, words)
    assert in_totals(record) == [9, 9, 9]
    assert [{*rejected} for rejected in named(record)] == [{"partition-2"}] * 3
    assert same_end(record, without(small, 10, {2}))
    assert grid.asked.count((SHARES, 0)) == 3


def test_who_accuses_too_many_is_out_and_those_it_accuses_are_not(small: Small) -> None:
    record, grid = lied(small, 5, {2: accusing()})
    assert in_totals(record) == [4, 4, 4]
    for rejected in named(record):
        assert {*rejected} == {"partition-2"}
        assert "says of partition-0, partition-1, partition-3" in rejected["partition-2"]
    assert same_end(record, without(small, 5, {2}))
    assert grid.asked.count((SHARES, 0)) == 3


@pytest.mark.parametrize("liars", [1, 2, 3])
def test_as_many_accusers_as_may_lie_put_nobody_out(small: Small, liars: int) -> None:
    """All of them accuse the same honest site, of which the seven others have shares enough."""
    lies = {9 - i: accusing(0) for i in range(liars)}
    record, _ = lied(small, 10, lies, rounds=1)
    assert in_totals(record) == [10]
    assert named(record) == [{}]


@pytest.mark.parametrize("sites", [3, 4])
def test_of_three_or_four_sites_two_are_not_told_apart(small: Small, sites: int) -> None:
    """Rubbish for one of three: no total is opened, and the run stops with the second round."""
    lies = {1: rubbish(0)} if sites == 3 else {1: rubbish(0, 1)}
    if sites == 3:
        with pytest.raises(FederationError, match=r"partition-0 cannot read partition-1's shares"):
            lied(small, sites, lies)
    else:
        record, _ = lied(small, sites, lies)
        assert in_totals(record) == [3, 3, 3]


def test_under_noise_rubbish_ends_the_run_and_costs_one_round(small: Small) -> None:
    """A vector has left each site by then: nothing is asked for again, and the charge is written down."""
    words = "federation.secret_clip=1 privacy.noise_multiplier=8 privacy.examples=50"
    config = small(
        method="fedavg", rounds=3, set=f"federation.sites=5 federation.secret=on {words}"
    )
    with pytest.raises(FederationError, match="round 1's secret sum fails"):
        run(config, LyingGrid, lies={2: rubbish()})
