"""The figures of the table, against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from comparing import a_row, a_run

from nectar.comparison.rows import Row, default_target, is_outlier
from nectar.comparison.tables import Results, markdown, number, shown_rounds, size, terminal
from nectar.comparison.tuning import Axis, Choice, Search, Trial, choose
from nectar.comparison.variants import Variant


def test_mean_spread_and_cost() -> None:
    row = a_row(a_run(0.5, 0.7), a_run(0.8, 0.9))
    assert row.mean == pytest.approx(0.8)
    assert row.spread == pytest.approx(0.1 * math.sqrt(2))
    assert row.per_round(lambda one: one.up) == 100
    assert row.total(lambda one: one.up + one.down) == 2200


def test_a_networks_accuracy_is_that_of_the_network_alone() -> None:
    """Of several that the server learns, the one of the name; of one, only where the run's own is meant."""
    several = replace(a_run(0.5).rounds[-1], models={"vgg11": 0.7, "vit": 0.6})
    run = replace(a_run(0.5), rounds=(several,))
    assert [run.of(name, "convnet") for name in ("vit", "vgg11", "")] == [0.6, 0.7, 0.5]
    assert math.isnan(run.of("convnet", "convnet"))
    alone = a_run(0.5)
    assert [alone.of(name, "convnet") for name in ("convnet", "")] == [0.5, 0.5]
    assert math.isnan(alone.of("vit", "convnet"))


def test_bytes_to_a_target_are_those_of_the_runs_that_reach_it() -> None:
    row = a_row(a_run(0.5, 0.7), a_run(0.8, 0.9), a_run(0.2, 0.3))
    spent = row.to_target(0.7)
    assert (spent.reached, spent.of, spent.rounds) == (2, 3, 1.5)
    assert (spent.total, spent.up) == (1650, 150)
    assert default_target([row, a_row(a_run(0.9))]) == 0.81


def test_what_is_unfinished_counts_in_no_mean() -> None:
    row = a_row(a_run(0.5, 0.7), a_run(0.8, completed=False), None)
    assert row.mean == 0.7
    assert math.isnan(row.spread)
    assert [row.flags(i) for i in range(3)] == ["", "?", "?"]


def test_flags() -> None:
    row = a_row(a_run(0.1), a_run(0.9, rejected=1), a_run(0.91), a_run(0.92))
    assert [row.flags(i) for i in range(4)] == ["*~", "!", "", ""]


def test_an_outlier_is_far_beyond_what_the_others_differ_by() -> None:
    assert is_outlier(0.5, [0.9, 0.91, 0.5])
    assert not is_outlier(0.89, [0.9, 0.91, 0.89])
    assert not is_outlier(0.985, [0.97, 0.97, 0.985])
    assert not is_outlier(0.5, [0.5, 0.9])


def test_only_seconds_of_runs_made_alone_are_shown() -> None:
    row = a_row(a_run(0.9, 0.9), a_run(0.9, 0.9, alone=False))
    assert row.seconds(lambda one: one.device_seconds) == 4.0
    assert math.isnan(a_row(a_run(0.9, alone=False)).seconds(lambda one: one.device_seconds))


def results(*rows: Row, choices: tuple[Choice, ...] = ()) -> Results:
    return Results("t", "nectar compare a", rows, 2, default_target(rows), False, choices)


def test_the_tables_say_it() -> None:
    rows = (
        a_row(a_run(0.5, 0.7), a_run(0.8, 0.9)),
        a_row(a_run(0.2, 0.3, alone=False), None, label="b|c"),
    )
    text = markdown(results(*rows))
    assert "| a | 0.8000 ± 0.1414 | 0.7000  0.9000 |" in text
    assert "| b\\|c | 0.3000 | 0.3000  –? |" in text
    assert "| a | 1.5 (1 of 2) |" not in text
    assert "| a | 1 (1 of 2) | 1.1 kB | 100 B | 100 B | 1 kB | 2.2 kB | 4 s | 1 s |" in text
    assert "| b\\|c | – (0 of 1) | – | – | 100 B | 1 kB | 2.2 kB | – | – |" in text
    assert "| a | 0.6500 | 0.8000 |" in text
    assert "2 of 3. `--alone`" in text


def test_what_an_audit_found_stands_beside_accuracy() -> None:
    audited = replace(a_run(0.5, 0.7), found=0.05, false_alarms=0.01)
    text = markdown(results(a_row(audited, replace(audited, found=0.03)), a_row(a_run(0.2, 0.3))))
    assert "| method | accuracy | found (alarms) |" in text
    assert "| a | 0.7000 ± 0.0000 | 4.0 % (1.0) |" in text
    assert "| a | 0.3000 | – |" in text
    assert "runs that were audited, 2 of 3." in text
    assert "≥" not in text
    in_part = markdown(results(a_row(audited, replace(audited, found=0.03, audited_in_part=True))))
    assert "| ≥ 4.0 % (1.0) |" in in_part
    assert "- ≥: the records do not keep" in in_part
    assert "found" not in markdown(results(a_row(a_run(0.2, 0.3)))).lower()


def test_a_terminal_has_120_columns() -> None:
    runs = [a_run(*([0.5] * 30)) for _ in range(20)]
    wide = results(
        a_row(*runs, label="a method with a label that is longer than any table is wide, " * 2)
    )
    assert max(map(len, terminal(wide).splitlines())) <= 120


def test_rounds_that_are_shown() -> None:
    assert shown_rounds(3, 10) == [1, 2, 3]
    assert shown_rounds(100, 4) == [1, 34, 67, 100]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (104400, "104 kB"), (1.25e6, "1.25 MB"), (2.5e12, "2500 GB")],
)
def test_sizes(value: float, text: str) -> None:
    assert size(value) == text


def test_the_best_mean_on_validation_is_chosen_and_its_edge_told() -> None:
    axes = (Axis("fedavg.lr", ("0.1", "0.3", "1")), Axis("fedavg.weighting", ("counts", "uniform")))
    search = Search("fedavg", Variant("fedavg", "fedavg"), ("fedavg",), axes)
    scores = [(0.5, 0.6), (0.9, math.nan), (0.6, 0.7), (0.6, 0.7), (0.7, 0.5), (0.5, 0.5)]
    trials = [Trial(s, a) for s, a in zip(search.grid(), scores, strict=True)]
    choice = choose(search, trials)
    assert choice.best.settings == ("fedavg.lr=0.3", "fedavg.weighting=counts")
    assert choice.edges == []
    trials[4] = Trial(trials[4].settings, (0.8, 0.8))
    edge = choose(search, trials)
    assert edge.edges == ["fedavg.lr=1"]
    text = markdown(results(a_row(a_run(0.5, 0.7)), choices=(edge,)))
    assert "fedavg.lr=0.3 fedavg.weighting=counts: 0.6500" in text
    assert "fedavg.lr=1 lies at the edge" in text
    assert number(math.nan) == "–"
