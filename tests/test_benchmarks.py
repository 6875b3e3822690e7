"""The benchmark runner's arithmetic, with a clock that the test moves."""

from __future__ import annotations

import pytest

from benchmarks import measure
from benchmarks.measure import Claim, compare, table


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless ``clock[0]`` is moved."""
    now = [0.0]
    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])
    return now


def _work(clock, seconds, order, name):
    def work(pair):
        order.append((name, pair))
        clock[0] += seconds[pair]

    return work


@pytest.mark.parametrize(
    ("claim", "ratio", "spread"),
    [(Claim(at_least=2.0), 3.0, (1.0, 6.0)), (Claim(at_most=1.1), 1 / 3, (1 / 6, 1.0))],
)
def test_ratios_are_taken_pair_by_pair(clock, claim, ratio, spread):
    slow, quick = [9, 3, 3, 3, 3, 30, 1, 6], [9, 1, 1, 1, 1, 10, 1, 1]
    order = []
    row = compare(
        "x", _work(clock, slow, order, "a"), _work(clock, quick, order, "b"), pairs=7, claim=claim
    )
    assert row.ratio == pytest.approx(ratio)
    assert (min(row.ratios), max(row.ratios)) == pytest.approx(spread)
    assert (row.reference, row.ours) == (3, 1)
    assert row.holds
    # one call of each to warm up, then pairs whose first half alternates
    assert order[:6] == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("b", 2), ("a", 2)]
    assert "held" in table([row])


def test_a_missed_claim_says_so(clock):
    steps = [1.0] * 8
    row = compare(
        "x",
        _work(clock, steps, [], "a"),
        _work(clock, steps, [], "b"),
        pairs=7,
        claim=Claim(at_least=2),
    )
    assert not row.holds
    assert "MISSED" in table([row])


def test_too_few_pairs_are_refused():
    with pytest.raises(ValueError, match="at least 7"):
        compare("x", id, abs, pairs=6, claim=Claim(at_least=1))
