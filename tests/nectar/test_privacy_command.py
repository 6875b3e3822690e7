"""`nectar privacy`: a site's ledger in words, and plans that hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from common.privacy.accounting import epsilon
from common.privacy.events import Event
from common.privacy.ledger import LEDGER, Charge, Ledger
from nectar.cli import main as nectar
from nectar.operate.privacy_plan import rounds_left

DELTA = 1e-5
SAMPLED = Event("dp-sgd", 1.5, 0.05, 30)
MEANS = Event("latent-means", 9.0, adjacency="replace-one")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    ledger = Ledger(tmp_path)
    for record, server_round, event in (
        ("run-a", 1, SAMPLED),
        ("run-a", 2, SAMPLED),
        ("run-a", 2, SAMPLED),
        ("run-b", 1, MEANS),
    ):
        where = ("2026-01-01T00:00:00Z", "north", record, server_round, "train", "fedavg", "/data")
        ledger.append(Charge(*where, (event,)), lambda before: None)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_a_ledger_is_told_by_run_and_together(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nectar(["privacy", str(state)]) == 0
    head, one, other, _, total, place = said(capsys).splitlines()
    assert head.split() == ["first", "record", "data", "method", "rounds", "released", "epsilon"]
    assert "run-a" in one
    assert "2, 3 charges  90 x dp-sgd of a 0.05 sample, noise 1.5 " in one
    assert one.split()[-1] == f"{epsilon([SAMPLED] * 3, DELTA).value:.3g}"
    assert "1 x latent-means, noise 9, for an exchange" in other
    assert other.split()[-1] == f"{epsilon([MEANS], DELTA).value:.3g}"
    both = epsilon([*[SAMPLED] * 3, MEANS], DELTA).value
    assert f"4 charges, all data together: epsilon {both:.3g} at delta 1e-05" in total
    assert str(state / LEDGER) in place


def test_another_delta_and_a_budget(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spent = epsilon([*[SAMPLED] * 3, MEANS], 1e-7).value
    words = [str(state), "--delta", "1e-7", "--epsilon"]
    assert nectar(["privacy", *words, f"{spent * 1.01}"]) == 0
    assert "is not spent" in said(capsys)
    assert nectar(["privacy", *words, f"{spent * 0.99}"]) == 1
    assert "is spent" in said(capsys)


def test_a_site_that_was_charged_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nectar(["privacy", str(tmp_path), "--epsilon", "1"]) == 0
    assert "no charges; runs without noise" in said(capsys)
    assert list(tmp_path.iterdir()) == [], "to look writes nothing"


def test_a_ledger_that_was_edited_is_refused(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = state / LEDGER
    path.write_text(path.read_text().replace("run-b", "run-c"))
    assert nectar(["privacy", str(state)]) == 2
    assert "damaged at line 4" in capsys.readouterr().err


PLAN = ["plan", "--epsilon", "3", "--sample-rate", ".05", "--steps", "100"]


@pytest.mark.extended
def test_the_noise_that_is_planned_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    assert nectar(["privacy", *PLAN, "--rounds", "20", "--delta", "1e-5"]) == 0
    found = re.match(r"A noise multiplier of ([0-9.]+): 20 rounds of 100 steps", said(capsys))
    assert found is not None
    noise = float(found[1])
    assert epsilon([Event("a", noise * 1.001, 0.05, 2000)], DELTA).value <= 3
    assert epsilon([Event("a", noise * 0.99, 0.05, 2000)], DELTA).value > 3


@pytest.mark.extended
def test_the_rounds_that_are_left(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    each = Event("a", 2.0, 0.05, 100)
    fresh = rounds_left([], [each], 3.0, DELTA)
    left = rounds_left([*[SAMPLED] * 3, MEANS], [each], 3.0, DELTA)
    assert fresh is not None
    assert left is not None
    assert 0 < left < fresh
    assert nectar(["privacy", *PLAN, "--noise", "2"]) == 0
    assert f"leaves {fresh} rounds of 100 steps" in said(capsys)
    assert nectar(["privacy", *PLAN, "--noise", "2", "--spent", str(state)]) == 0
    assert f"leaves {left} round" in said(capsys)
    assert nectar(["privacy", *PLAN, "--noise", "0.3"]) == 1
    assert "leaves 0 rounds" in said(capsys)
