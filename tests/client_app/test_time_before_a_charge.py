"""What cannot end in the round's time is refused before it is charged, by made-up rows; no charge is given back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from charged import CHARGED, GENERATOR, ONE
from federation import run
from flwr.app import Message
from named_site import equal, served
from small import Small
from torch import Tensor

from common.errors import FederationError
from common.privacy.ledger import LEDGER, Ledger
from common.samples.inputs import Samples

pytestmark = pytest.mark.promise(
    "Records",
    "A private phase that cannot end in the round's time is not charged",
)


def config(small: Small, name: str, steps: int) -> dict[str, Any]:
    method, text, length = (CHARGED | {"drawn": GENERATOR})[name]
    return small(method=method, rounds=1, set=f"{ONE} {text} {length}={steps}")


def at(state: Path) -> dict[str, Any]:
    return {"state-dir": str(state)}


def refused(run_config: dict[str, Any], state: Path, left: float) -> str:
    with pytest.raises(FederationError) as stopped:
        served(run_config, 1, at(state), **{"seconds-left": left})
    assert not (state / LEDGER).exists(), "nothing is charged"
    return str(stopped.value)


@pytest.mark.parametrize("name", [*CHARGED, "drawn"])
def test_a_round_without_time_costs_nothing(small: Small, tmp_path: Path, name: str) -> None:
    assert "ran out of the round's time" in refused(config(small, name, 1), tmp_path / "s", 1e-9)


def unreadable_from(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Let the site's own examples, which are bytes, raise when they are read."""
    read = Samples.inputs

    def inputs(self: Samples, idx: Tensor | slice) -> Tensor:
        if self.raw.dtype == torch.uint8:
            raise error
        return read(self, idx)

    monkeypatch.setattr(Samples, "inputs", inputs)


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    unreadable_from(monkeypatch, AssertionError("an example was read"))


@pytest.mark.usefixtures("unreadable")
@pytest.mark.parametrize("name", CHARGED)
def test_steps_that_take_longer_than_is_left_cost_nothing_and_read_nothing(
    small: Small, tmp_path: Path, name: str
) -> None:
    message = refused(config(small, name, 10**6), tmp_path / "s", 20.0)
    assert "too short for this phase (estimated " in message
    assert "an example was read" not in message


def test_a_generator_that_the_next_round_goes_on_with_is_charged_once(
    small: Small, tmp_path: Path
) -> None:
    for number in (1, 2, 3):
        served(config(small, "drawn", 10**5), number, at(tmp_path / "s"), **{"seconds-left": 7.0})
    assert len(Ledger(tmp_path / "s").read().events) == 1


@pytest.mark.parametrize("name", [*CHARGED, "drawn"])
def test_with_time_enough_the_phase_is_charged_and_carried_out(
    small: Small, tmp_path: Path, name: str
) -> None:
    record, _ = served(config(small, name, 1), 1, at(tmp_path / "s"), **{"seconds-left": 600.0})
    assert record.metrics()[1]["rejected"] == {}
    assert Ledger(tmp_path / "s").read().head.length >= 1


def test_what_fails_after_its_charge_stays_charged(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An example was read by then, so that the failure itself tells of it."""
    unreadable_from(monkeypatch, FederationError("ran out"))
    with pytest.raises(FederationError, match="ran out"):
        served(config(small, "fedavg", 1), 1, at(tmp_path / "s"))
    assert Ledger(tmp_path / "s").read().head.length == 1


@pytest.mark.parametrize("name", ["fedavg", "fedgen", "feature", "loss"])
def test_where_nothing_is_charged_nothing_is_timed(
    small: Small, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a simulation, and at a node of a real federation whose noise is the seed's; both send the same."""
    monkeypatch.setattr("client_app.device.estimated_seconds", lambda *_: 1 / 0)
    run_config = config(small, name, 1)
    run_config["set"] += " privacy.noise=seeded"
    replies: list[list[Message]] = []
    for node, message in (({"simulated": True}, {}), (at(tmp_path / "s"), {"seconds-left": 1e6})):
        replies.append(served(run_config, 1, node, **message)[1])
    assert equal(*replies)
    run(run_config)
