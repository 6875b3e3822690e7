"""The benchmark runner's arithmetic, with a clock that the test moves."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest
import torch

import benchmarks.__main__ as runner
from benchmarks import ENTRIES, measure, scaling, small_devices, synthetic_update
from benchmarks.measure import Claim, compare, table
from client_app.fedavg import FedAvgClient


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


def test_a_stated_figure_has_no_verdict_and_its_own_unit():
    row = measure.Row("x", 10.0, 25.0, (2.5,), Claim(), unit="MB")
    assert row.holds
    line = table([row]).splitlines()[1]
    assert line.split() == ["x", "10.000MB", "25.000MB", "2.50x", "2.50..2.50", "stated"]
    assert str(Claim(at_most=1.5, of="the memory")) == "<= 1.5x the memory"
    assert Claim().ratio(2.0, 5.0) == 2.5, "the cost, as with at_most"


@pytest.mark.parametrize(
    ("claims", "code"), [((Claim(), Claim(at_most=3.0)), 0), ((Claim(), Claim(at_most=2.0)), 1)]
)
def test_a_figure_that_is_stated_alone_fails_no_run(monkeypatch, capsys, claims, code):
    made = [measure.Row(f"row {i}", 1.0, 2.5, (2.5,), claim) for i, claim in enumerate(claims)]
    monkeypatch.setitem(ENTRIES, "made", "made")
    entry = SimpleNamespace(rows=lambda pairs: made)
    monkeypatch.setattr(runner, "importlib", SimpleNamespace(import_module=lambda name: entry))
    monkeypatch.setattr(runner.sys, "argv", ["benchmarks", "made"])
    assert runner.main() == code
    assert "stated" in capsys.readouterr().out


def test_small_devices_are_measured_on_one_core_on_either_side(monkeypatch):
    """Threads that the loop has and ours has not are CPU seconds of the loop's alone."""
    seen = []

    def noted(name, reference, ours, *, pairs, claim, clock):
        seen.append((torch.get_num_threads(), claim))
        return measure.Row(name, 1.0, 1.0, (1.0,), claim)

    monkeypatch.setattr(small_devices, "compare", noted)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        small_devices.rows(7)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == 2 * [(1, Claim()), (1, Claim(at_most=1.5))]


def test_every_entry_can_be_measured():
    for name, module in ENTRIES.items():
        assert callable(importlib.import_module(module).rows), name


def test_a_synthetic_update_is_measured_on_the_work_that_it_names(tmp_path):
    """25 examples at the default rate, in as many batches as the row says; FedAvg's own weights beside."""
    device = synthetic_update.fedsynth("loss", 5, 1, str(tmp_path), images=64)
    arrays, examples, figures = synthetic_update.one_round(device)(1)
    assert examples == 64
    assert "cosine" not in figures, "fidelity is off: no local training hides in the figure"
    assert (5, 5, 1, 28, 28) in [array.shape for array in arrays]
    words = "fedavg.epochs=1 fedavg.batch=64"
    plain = synthetic_update.device(FedAvgClient, words, str(tmp_path), images=64)
    arrays, _, _ = synthetic_update.one_round(plain)(1)
    assert sum(array.size for array in arrays if array.dtype == "float32") == 159_010


@pytest.mark.extended
def test_the_peak_of_memory_is_seen_in_a_process_of_its_own():
    """It holds at least the graph's own tensors: five steps' new weights of 159,010 float32 numbers."""
    assert 5 * 159_010 * 4 / 1e6 < synthetic_update.peak_elsewhere(2) < 500


@pytest.mark.sweep
@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_a_round_is_measured_where_no_data_set_is(method: str) -> None:
    with scaling.rounds(method, 0.1, 2) as rounds:
        rounds.ours(1)
        rounds.ours(2)
        assert all(map(torch.all, map(torch.isfinite, rounds.bare().values())))
