"""The method in ``examples/damped`` runs, and `nectar compare --list` finds tables."""

from __future__ import annotations

import pytest
from federation import run
from small import Small

from nectar.cli import main
from nectar.comparison.listing import listing


@pytest.mark.extended
def test_the_example_of_a_method_runs(small: Small) -> None:
    """A share of 1 sends what FedAvg's sites send."""
    losses = [
        run(small(rounds=1, method=method, set=words)).metrics()[-1]["test"]["loss"]
        for method, words in (
            ("fedavg", ""),
            ("damped:METHOD", "damped.share=1"),
            ("damped:METHOD", "damped.share=0.5"),
        )
    ]
    assert losses[0] == pytest.approx(losses[1])
    assert losses[0] != losses[2]


@pytest.mark.extended
def test_tables_are_found_by_their_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        listing().count("\n") > listing("FedDM").count("\n") > listing("feddm", "mnist").count("\n")
    )
    assert "feddm-2" in listing("feddm-2")
    assert main(["compare", "--list", "cifar10", "nosuchtable"]) == 2
    assert "no table has 'cifar10' and 'nosuchtable'" in capsys.readouterr().err
