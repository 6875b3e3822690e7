"""`nectar run METHOD`, with no other word: every method, on the default data set."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import pytest
from places import ROOT

from benchmarks import standings
from common.config.loading import load
from common.methods import METHODS
from nectar import cli
from nectar.arguments import parse_arguments
from nectar.engines.preflight import check
from server_app.record import Record

RESULTS = ROOT / "docs" / "results"

BELOW_LOCAL = {"fedsynth"}
"""Methods that do not end above ``local``: docs/methods.md says why."""


def rows() -> dict[str, tuple[int, float]]:
    """Return seconds and accuracy by method."""
    with (RESULTS / "as-typed.csv").open(encoding="utf-8") as file:
        return {
            row["method"]: (int(row["seconds"]), float(row["accuracy"]))
            for row in csv.DictReader(file)
        }


@pytest.mark.sweep
@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_be_had_by_its_name_alone(method: str) -> None:
    """What a run checks before it begins: the model, the data and their division, the strategy."""
    config = load(parse_arguments([method]))
    assert (config.method, config.dataset) == (method, "digits")
    check(config)


@pytest.mark.parametrize("method", ["fedvae", "feddpms"])
def test_a_methods_own_model_stands_over_the_data_sets_and_under_what_is_typed(method: str) -> None:
    for dataset in ("digits", "femnist", "cifar10"):
        model = load({"method": method, "dataset": dataset}).model
        assert (model.name, model.depth, model.width, model.embedding) == ("vae", 1, 16, 32)
    typed = load(parse_arguments([method, "model.width=8", "model.name=encoder"]))
    assert (typed.model.name, typed.model.width) == ("encoder", 8)
    assert typed.origin["model.depth"] == f"method={method}"
    stated = load({"experiment": "feddpms-cifar10", "method": method}).model
    assert (stated.depth, stated.width, stated.embedding) == (2, 32, 128)
    other = load({"method": "fedavg", "dataset": "digits"}).model
    assert (other.name, other.depth, other.width) == ("convnet", 2, 32)


def test_every_method_ends_within_two_minutes_and_above_local() -> None:
    table = rows()
    assert set(table) == set(METHODS)
    assert max(seconds for seconds, _ in table.values()) <= 120
    below = {name for name, (_, reached) in table.items() if reached <= table["local"][1]}
    assert below - {"local"} == BELOW_LOCAL


@cache
def reached(method: str, runs: Path, *more: str) -> float:
    """Return the accuracy that ``nectar run METHOD`` ends with."""
    note = runs / f"{method}.txt"
    words = ["run", method, *more, f"output-dir={runs}", "--note-record", str(note)]
    assert cli.main(words) == 0
    lines = Record(Path(note.read_text().strip())).metrics()
    assert len(lines) == 1 + load(parse_arguments([method])).rounds
    return float((lines[-1]["test"] or lines[-1]["sites"])["accuracy"])


STANDING = {
    one.method: one.accuracy
    for one in standings.read(RESULTS / "leaderboard.csv")
    if (one.group, one.row, one.seed) == ("digits", one.method, 0)
}


@pytest.mark.extended
@pytest.mark.skipif(not STANDING, reason="the leaderboard has no digits yet")
@pytest.mark.parametrize("method", ["fedavg"])
def test_the_leaderboards_first_seed_is_reached_again(
    method: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    runs = tmp_path_factory.getbasetemp() / "as-typed"
    runs.mkdir(exist_ok=True)
    board = "data.validation_at=sites"
    assert reached(method, runs, board) == pytest.approx(STANDING[method], abs=0.02)


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_a_method_as_typed_learns_more_than_local(
    method: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    runs = tmp_path_factory.getbasetemp() / "as-typed"
    runs.mkdir(exist_ok=True)
    if method not in {"local", *BELOW_LOCAL}:
        assert reached(method, runs) > reached("local", runs)
    assert reached(method, runs) == pytest.approx(rows()[method][1], abs=0.1)
