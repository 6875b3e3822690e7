"""The figures of the table, against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from comparing import a_run, results_of

from common.config.loading import load
from nectar.comparison.frame import frames, is_outlier
from nectar.comparison.paper_table import Printed
from nectar.comparison.request import Axis, Variant
from nectar.comparison.results import _ours
from nectar.comparison.tables import evenly_spaced
from nectar.comparison.tuning import Search, choose
from nectar.records.record import RunRecord
from nectar.text import MISSING, share, size


def row_of(*runs: RunRecord | None, target: float | None = None) -> Any:
    """What a row of these runs comes to."""
    return results_of({"a": runs}, target=target).summary.loc["a"]


def flags_of(*runs: RunRecord | None) -> list[str]:
    return list(results_of({"a": runs}).by_run["flags"])


def test_mean_spread_and_cost() -> None:
    row = row_of(a_run(0.5, 0.7), a_run(0.8, 0.9))
    assert row["mean"] == pytest.approx(0.8)
    assert row["spread"] == pytest.approx(0.1 * math.sqrt(2))
    assert row["bytes_up"] == 100
    assert row["bytes"] == 2200


def test_a_networks_accuracy_is_that_of_the_network_alone() -> None:
    """Of several that the server learns, the one of the name; of one, only where the run's own is meant."""
    config = load({"method": "fedavg", "set": "model.name=convnet"})
    several = a_run(0.5, models={"vgg11": 0.7, "vit": 0.6})
    by_run, *_ = frames({"a": {0: several, 1: a_run(0.5)}}, 0.5, {"a": config})
    networks = ["models.vgg11", "models.vit", "models.convnet"]
    assert by_run[networks].fillna("").to_numpy().tolist() == [[0.7, 0.6, ""], ["", "", 0.5]]


def test_an_average_over_networks_takes_a_rows_own_models_or_the_rows_of_its_name() -> None:
    """Seed by seed; a row alone has no average where a network's row is not there."""

    def of(*each: dict[str, float]) -> list[RunRecord]:
        return [a_run(0.5, models=judged) for judged in each]

    rows = {
        "server": of({"mlp": 0.6, "vit": 0.8}, {"mlp": 0.7, "vit": 0.9}),
        "sites": of({"mlp": 0.1}, {"mlp": 0.5}),
        "sites vit": of({"vit": 0.3}, {"vit": 0.5}),
    }
    results = results_of(rows)
    block = Printed("Table 1", "accuracy", "mlp, vit", {}, {})
    ours = {row: _ours(results, row, block, "") for row in rows}
    assert ours == {"server": "75.00 ± 7.07", "sites": "35.00 ± 21.21", "sites vit": MISSING}
    one = replace(block, network="vit")
    ours = {row: _ours(results, row, one, "") for row in rows}
    assert ours == {"server": "85.00 ± 7.07", "sites": MISSING, "sites vit": "40.00 ± 14.14"}


def test_bytes_to_a_target_are_those_of_the_runs_that_reach_it() -> None:
    runs = (a_run(0.5, 0.7), a_run(0.8, 0.9), a_run(0.2, 0.3))
    row = row_of(*runs, target=0.7)
    assert (row["reached"], row["runs"], row["rounds_to_target"]) == (2, 3, 1.5)
    assert (row["bytes_to_target"], row["bytes_up_to_target"]) == (1650, 150)
    assert results_of({"a": runs, "b": [a_run(0.9)]}).target == 0.81


def test_what_is_unfinished_counts_in_no_mean() -> None:
    runs = (a_run(0.5, 0.7), a_run(0.8, completed=False), None)
    row = row_of(*runs)
    assert row["mean"] == 0.7
    assert math.isnan(row["spread"])
    assert flags_of(*runs) == ["", "?", "?"]


def test_runs_without_a_round_and_rows_of_fewer_seeds_are_gaps() -> None:
    accuracy, *_ = results_of({"a": [a_run(rounds=1), None], "b": [a_run(0.3)]}).tables
    assert accuracy.cells.to_numpy().tolist() == [["–", "–?*", "–?"], ["0.3000", "0.3000", "–"]]


def test_a_round_that_is_recorded_twice_stops_no_table() -> None:
    run = a_run(0.5, 0.7)
    run.rounds.append(run.rounds[-1])
    assert results_of({"a": [run]}).by_run["accuracy_2"].tolist() == [0.7]


def test_of_one_seed_no_deviation_is_spoken() -> None:
    one, two = results_of({"a": [a_run(0.5)]}, 1), results_of({"a": [a_run(0.5), a_run(0.7)]}, 1)
    assert not any("±" in note for note in one.notes)
    assert any("±" in note for note in two.notes)


def test_flags() -> None:
    runs = (a_run(0.1), a_run(0.9, rejected=1), a_run(0.91), a_run(0.92))
    assert flags_of(*runs) == ["*~", "!", "", ""]


def test_an_outlier_is_far_beyond_what_the_others_differ_by() -> None:
    assert is_outlier(0.5, [0.9, 0.91, 0.5])
    assert not is_outlier(0.89, [0.9, 0.91, 0.89])
    assert not is_outlier(0.985, [0.97, 0.97, 0.985])
    assert not is_outlier(0.5, [0.5, 0.9])


def test_only_seconds_of_runs_made_alone_are_shown() -> None:
    row = row_of(a_run(0.9, 0.9), a_run(0.9, 0.9, alone=False))
    assert row["seconds_devices"] == 4.0
    assert math.isnan(row_of(a_run(0.9, alone=False))["seconds_devices"])


def test_a_terminal_has_120_columns() -> None:
    runs = [a_run(*([0.5] * 30)) for _ in range(20)]
    label = "a method with a label that is longer than any table is wide, " * 2
    wide = results_of({label: runs}, 30)
    assert max(map(len, wide.table.splitlines())) <= 120


def test_rounds_that_are_shown() -> None:
    assert evenly_spaced(3, 10) == [1, 2, 3]
    assert evenly_spaced(100, 4) == [1, 34, 67, 100]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (104400, "104 kB"), (1.25e6, "1.25 MB"), (2.5e12, "2,500 GB")],
)
def test_sizes(value: float, text: str) -> None:
    assert size(value) == text


def test_the_best_mean_on_validation_is_chosen_and_its_edge_told() -> None:
    axes = (Axis("fedavg.lr", ("0.1", "0.3", "1")), Axis("fedavg.weighting", ("counts", "uniform")))
    search = Search("fedavg", Variant("fedavg", "fedavg"), ("fedavg",), axes)
    scores = [(0.5, 0.6), (0.9, math.nan), (0.6, 0.7), (0.6, 0.7), (0.7, 0.5), (0.5, 0.5)]
    trials = dict(zip(search.grid(), scores, strict=True))
    choice = choose(search, trials, "see their logs")
    assert choice.best == ("fedavg.lr=0.3", "fedavg.weighting=counts")
    assert choice.edges == []
    edge = choose(search, trials | {search.grid()[4]: (0.8, 0.8)}, "see their logs")
    assert edge.edges == ["fedavg.lr=1"]
    assert share(math.nan) == "–"
