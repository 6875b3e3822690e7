"""Private runs as the server sees them: what was spent stands in the record, and an older ledger takes no part."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from data_files import forget_loaded
from federation import MissingGrid, run
from flwr.app import ConfigRecord, Message
from private_method import MULTIPLIER
from small import Small

from client_app.app import app as client_app
from common.config.loading import load
from common.errors import FederationError
from common.privacy.accounting import epsilon
from common.privacy.events import Event
from common.privacy.ledger import Ledger
from nectar.engines.local_grid import LocalGrid
from nectar.records.record import RunRecord
from nectar.report.privacy import exposed
from nectar.report.view import View
from server_app.app import serve
from server_app.record import Record
from server_app.recorder import LEDGER_TIPS, load_ledger_tips

pytestmark = pytest.mark.promise(
    "A site is the master of its own machine",
    "An edited, shortened or restored ledger lets nothing out. Ledger and server restored "
    "alike: not noticed",
)

METHOD = "private_method:METHOD"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_loaded(monkeypatch)


def spent(record: Record, server_round: int = -1) -> Mapping[str, Any]:
    found: Mapping[str, Any] = record.metrics()[server_round]["notes"]["spent"]
    return found


def steps(record: Record, site: str, server_round: int = -1) -> int:
    (event,) = spent(record, server_round)[site]["events"]
    assert Event.read(event) == Event("noisy", MULTIPLIER, steps=event["steps"])
    return int(event["steps"])


# ---- simulated ----------------------------------------------------------------------------------------


def test_a_simulation_says_what_it_would_cost_and_that_it_guarantees_nothing(small: Small) -> None:
    record = run(small(method=METHOD, rounds=3))
    for server_round in (1, 2, 3):
        for site in spent(record, server_round).values():
            cost = epsilon([Event("noisy", MULTIPLIER, steps=server_round)], 1e-5).value
            assert site["epsilon"] == pytest.approx(cost)
            assert (site["seeded"], site["delta"], site["unit"]) == (True, 1e-5, "example")
    message = " ".join(exposed(View(RunRecord.open(record.directory))))
    assert "seeded noise, no guarantee" in message
    assert "number of images was not reported" in message
    assert not (record.directory / LEDGER_TIPS).exists()


def _partition(record: Record) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((record.directory / "partition.json").read_text())
    return content


# ---- real sites ---------------------------------------------------------------------------------------


def nodes(tmp_path: Path, **more: Any) -> list[dict[str, Any]]:
    return [
        {
            **{"simulated": False, "partition-id": i, "num-partitions": 2},
            **{"state-dir": str(tmp_path / f"state-{i}"), "allow-imports": "private_method"},
            **more,
        }
        for i in range(2)
    ]


def real(
    small: Small, tmp_path: Path, grid: Any = LocalGrid, text: str = "", **options: Any
) -> Record:
    more = options.pop("node", {})
    keys = small(
        method=METHOD,
        set=f"privacy.noise=system federation.sites=2 federation.min_replies=1 {text}",
        rounds=options.pop("rounds", 2),
    )
    return serve(grid(client_app, nodes(tmp_path, **more), keys, **options), load(keys))


PUBLIC = "privacy.counts=public"


def test_the_record_keeps_each_ledgers_head_and_what_the_run_cost(
    small: Small, tmp_path: Path
) -> None:
    record = real(small, tmp_path, text=PUBLIC)
    assert {steps(record, f"partition-{i}") for i in range(2)} == {2}
    assert not spent(record)["partition-0"]["seeded"]
    heads = json.loads((record.directory / LEDGER_TIPS).read_text())
    for i in range(2):
        head = Ledger(tmp_path / f"state-{i}").read().head
        assert heads[f"partition-{i}"] == {"length": 2, "sha256": head.sha256}
    again = real(small, tmp_path, text=PUBLIC)
    assert {steps(again, f"partition-{i}") for i in range(2)} == {2}, "that of this run alone"
    assert Ledger(tmp_path / "state-0").read().head.length == 4


def test_where_counts_are_not_told_the_events_are_the_sites_own(
    small: Small, tmp_path: Path
) -> None:
    record = real(small, tmp_path)
    assert spent(record)["partition-0"]["events"] == []
    assert spent(record)["partition-0"]["epsilon"] is None
    message = " ".join(exposed(View(RunRecord.open(record.directory))))
    assert "ledgers of the sites" in message


def test_a_reply_that_is_lost_is_counted_with_the_next(small: Small, tmp_path: Path) -> None:
    record = real(small, tmp_path, MissingGrid, PUBLIC, absent=set(), lost={("partition-0", 1)})
    assert "partition-0" not in spent(record, 1)
    assert steps(record, "partition-0") == 2
    assert steps(record, "partition-1") == 2


@pytest.mark.extended
def test_a_site_that_puts_back_an_older_ledger_is_left_out_of_the_next_run(
    small: Small, tmp_path: Path
) -> None:
    real(small, tmp_path, rounds=1)
    shutil.copytree(tmp_path / "state-0", tmp_path / "backup")
    real(small, tmp_path, rounds=1)
    shutil.rmtree(tmp_path / "state-0")
    (tmp_path / "backup").rename(tmp_path / "state-0")
    record = real(small, tmp_path, rounds=1)
    (why,) = _partition(record)["left_out"].values()
    assert "privacy ledger is older than one that the server has seen" in why
    assert list(spent(record)) == ["partition-1"]
    assert Ledger(tmp_path / "state-0").read().head.length == 1


class PutBack(LocalGrid):
    """A federation whose first site has its state put back to what it was before, when round 3 begins."""

    place: Path

    def _call(self, message: Message) -> Message:
        about = message.metadata
        first = about.dst_node_id == min(self.get_node_ids())
        if about.message_type == "train" and first:
            if about.group_id == "2":
                shutil.copytree(self.place, self.place.with_name("backup"))
            if about.group_id == "3":
                shutil.rmtree(self.place)
                shutil.copytree(self.place.with_name("backup"), self.place)
        return super()._call(message)


def test_nor_does_it_go_on_in_the_run(small: Small, tmp_path: Path) -> None:
    PutBack.place = tmp_path / "state-0"
    record = real(small, tmp_path, PutBack, rounds=4)
    rejected = [line["rejected"] for line in record.metrics()[1:]]
    assert rejected[:2] == [{}, {}]
    assert all("is older than" in each["partition-0"] for each in rejected[2:])


def test_a_budget_that_is_spent_ends_what_the_site_takes_part_in(
    small: Small, tmp_path: Path
) -> None:
    most = epsilon([Event("noisy", MULTIPLIER, steps=2)], 1e-5).value
    with pytest.raises(FederationError, match="its privacy budget does not allow this"):
        real(small, tmp_path, rounds=5, node={"privacy-epsilon": most})
    for i in range(2):
        assert Ledger(tmp_path / f"state-{i}").read().head.length == 2


WRONG: dict[str, Mapping[str, Any]] = {
    "nothing": {},
    "no events": {"events": "{}", "whole": True, "seeded": False},
    "no text": {"events": "[", "whole": True, "seeded": False},
    "no event": {"events": '[{"mechanism": "a"}]', "whole": True, "seeded": False},
    "no truth": {"events": "[]", "whole": 1, "seeded": False},
    "a head of none": {"events": "[]", "whole": True, "seeded": False, "ledger-head": "{}"},
    "too deep": {"events": "[" * 100_000, "whole": True, "seeded": False},
    "steps that nobody can reckon with": {
        "events": json.dumps([Event("a", 1.0, 0.5, 10**400).to_dict()]),
        "whole": True,
        "seeded": False,
    },
    "too many": {"events": f"[{','.join(['1'] * 2000)}]", "whole": True, "seeded": False},
}


class Lying(LocalGrid):
    """A federation whose first site says something else of its privacy."""

    said: Mapping[str, Any]

    def _call(self, message: Message) -> Message:
        reply = super()._call(message)
        about = message.metadata
        if about.message_type == "train" and about.dst_node_id == min(self.get_node_ids()):
            reply.content["privacy"] = ConfigRecord(dict(self.said))
        return reply


@pytest.mark.extended
@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_read_is_that_sites_rejection(
    small: Small, tmp_path: Path, wrong: str
) -> None:
    Lying.said = WRONG[wrong]
    record = real(small, tmp_path, Lying, rounds=1)
    assert list(record.metrics()[1]["rejected"]) == ["partition-0"]
    assert record.metrics()[1]["accepted"] == ["partition-1"]


def charged(*events: Mapping[str, Any]) -> dict[str, Any]:
    return {"events": json.dumps(list(events)), "whole": False, "seeded": True}


def test_in_a_run_that_charges_nothing_nobody_says_what_it_was_charged(small: Small) -> None:
    """150 bytes that the server of 0.1.0 reckoned with for ever, in any method."""
    Lying.said = charged(Event("a", 1.0, 0.5, 1).to_dict() | {"noise_multiplier": 1e-160})
    keys = small(method="fedavg", rounds=2)
    grid = Lying(client_app, [{"partition-id": i, "num-partitions": 3} for i in range(3)], keys)
    record = serve(grid, load(keys))
    assert "noise that the run does not have" in record.metrics()[1]["rejected"]["partition-0"]
    assert record.metrics()[2]["accepted"] == ["partition-1", "partition-2"]


@pytest.mark.extended
@pytest.mark.parametrize("noise", [1e-160, 1e-3, 1e6])
def test_whatever_a_site_says_it_was_charged_is_reckoned_with(
    small: Small, tmp_path: Path, noise: float
) -> None:
    """Sixty-four kinds of events: a bound or none, and the run goes on."""
    Lying.said = charged(*(Event("a", noise, 0.5 + i / 200, 1).to_dict() for i in range(64)))
    record = real(small, tmp_path, Lying, rounds=2)
    assert len(record.metrics()) == 3


@pytest.mark.extended
@pytest.mark.parametrize("damage", ["text", "pipe"])
def test_a_damaged_file_of_heads_costs_its_own_heads_a_warning_and_no_later_run(
    small: Small, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    record = real(small, tmp_path, rounds=1)
    other = shutil.copytree(record.directory, record.directory.parent / "other")
    (record.directory / LEDGER_TIPS).unlink()
    if damage == "text":
        (record.directory / LEDGER_TIPS).write_text("[]")
    else:
        os.mkfifo(record.directory / LEDGER_TIPS)
    assert load_ledger_tips([other.parent]) == load_ledger_tips(
        [other.parent / "none", other.parent]
    )
    assert load_ledger_tips([other.parent]), "what the other record has seen is known"
    assert f"{record.directory / LEDGER_TIPS} is damaged" in caplog.text
    real(small, tmp_path, rounds=1)
