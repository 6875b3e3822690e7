"""What a run of many nodes writes and holds: it goes by the devices that are asked, not by those that are there."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small import Small

from common.config.loading import load
from common.division import Division
from common.privacy.events import Event
from common.privacy.ledger import PrivacyReport
from common.sites import RAY, SUPERLINK, Site
from common.specs.updates import VERSIONS_KEPT
from nectar import cli
from nectar.engines.local_run import run_here
from nectar.records.record import RunRecord
from server_app import recorder
from server_app.data_of_run import MOST_LISTED, describe_partition, unlisted
from server_app.record import Record
from server_app.recorder import spending_lines
from strategies.exchange.replies import PrivacyBudgetUsage

NODES, ASKED, ROUNDS = 1200, 6, 3

#: bytes that a line of metrics.jsonl has at most, without devices and for each that is asked
LINE, DEVICE = 1500, 400


@pytest.fixture
def many(small: Small) -> Callable[..., Record]:
    def run(method: str = "fedavg", nodes: int = NODES) -> Record:
        words = (
            f"federation.sites={nodes} federation.participation={ASKED / nodes} partition.kind=iid data.validation=0 "
            "compute.workers=1"
        )
        return run_here(load(small(method=method, rounds=ROUNDS, set=words)))

    return run


def sites(number: int, engine: str = RAY) -> list[Site]:
    return [Site(f"partition-{i}", i, 1 + i % 3, i, number, engine=engine) for i in range(number)]


def entries(folder: Path) -> int:
    return len([*folder.rglob("*")])


@pytest.mark.extended
def test_what_is_written_goes_by_the_devices_that_are_asked(many: Callable[..., Record]) -> None:
    record = many()
    partition = json.loads((record.directory / "partition.json").read_text(encoding="utf-8"))
    assert partition["sites"] == {}
    assert partition["unlisted"]["sites"] == NODES
    assert partition["unlisted"]["examples"] == len(Division(load({})).dataset.train)
    assert (record.directory / "partition.json").stat().st_size < 1000
    lines = (record.directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["round"] for line in lines] == [0, 1, 2, 3]
    assert all(len(json.loads(line)["accepted"]) == ASKED for line in lines[1:])
    assert max(map(len, lines)) < LINE + DEVICE * ASKED
    assert not (record.directory / "state").exists(), "no device remembers"
    few = many(nodes=MOST_LISTED)
    assert entries(few.directory) == entries(record.directory)


@pytest.mark.extended
def test_a_device_that_remembers_takes_a_folder_and_its_versions(
    many: Callable[..., Record],
) -> None:
    """SCAFFOLD's: a folder for each that ever took part, in it one of kind and run, a file for each latest round."""
    record = many("scaffold")
    taken = [site for line in record.metrics() for site in line["accepted"]]
    folders = [path for path in (record.directory / "state").iterdir() if path.is_dir()]
    assert {path.name for path in folders} == set(taken)
    files = sum(min(VERSIONS_KEPT, taken.count(site)) for site in set(taken))
    assert entries(record.directory / "state") == 3 * len(folders) + files


@pytest.mark.extended
def test_what_is_not_listed_is_divided_again_by_the_command_that_is_named(
    many: Callable[..., Record], capsys: pytest.CaptureFixture[str]
) -> None:
    record = many()
    assert "nectar data --config config.yaml" in record_of(record)["why"]
    assert cli.main(["data", "--config", str(record.directory / "config.yaml")]) == 0
    assert f"partition-{NODES - 1}" in capsys.readouterr().out


@pytest.mark.extended
def test_its_report_says_how_many_and_where_to_look(many: Callable[..., Record]) -> None:
    record = many()
    assert cli.main(["report", str(record.directory)]) == 0
    page = (record.directory / "report.html").read_text(encoding="utf-8")
    assert "1,200 sites held" in page
    assert "nectar data --config config.yaml" in page
    assert RunRecord.open(record.directory).partition["unlisted"]["most"] == 2


def record_of(record: Record) -> dict[str, Any]:
    content = json.loads((record.directory / "partition.json").read_text(encoding="utf-8"))
    found: dict[str, Any] = content["unlisted"]
    return found


def test_sizes_are_those_of_the_sites() -> None:
    message = unlisted(sites(MOST_LISTED + 2))
    assert message is not None
    assert {k: v for k, v in message.items() if k != "why"} == {
        "sites": 1002,
        "examples": 334 * 6,
        "least": 1,
        "median": 2,
        "most": 3,
    }


def test_no_sizes_are_said_of_sites_that_tell_none(small: Small) -> None:
    """Each of them says 1, whatever it holds."""
    words = "privacy.noise_multiplier=1 privacy.examples=100"
    there = [replace(site, examples=1) for site in sites(MOST_LISTED + 1)]
    found = describe_partition(Division(load(small(method="fedavg", set=words))), there)["unlisted"]
    assert found["sites"] == MOST_LISTED + 1
    assert [found[key] for key in ("examples", "least", "median", "most")] == [None] * 4


@pytest.mark.extended
def test_a_report_says_that_sites_told_no_sizes(many: Callable[..., Record]) -> None:
    record = many()
    path = record.directory / "partition.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["unlisted"] |= dict.fromkeys(("examples", "least", "median", "most"))
    path.write_text(json.dumps(content), encoding="utf-8")
    assert cli.main(["report", str(record.directory)]) == 0
    page = (record.directory / "report.html").read_text(encoding="utf-8")
    assert "1,200 sites took part and reported no numbers of images." in page


def test_what_stands_nowhere_else_is_listed(small: Small) -> None:
    """A thousand of a simulation, any number at a SuperLink, and sites with names of their own."""
    division = Division(load(small(set="evaluation.on=none")))
    named = sites(MOST_LISTED + 1)
    named[-1] = Site("north", 1000, 3, 1000, 1001, engine=RAY)
    for there in (sites(MOST_LISTED), sites(MOST_LISTED + 1, SUPERLINK), named):
        found = describe_partition(division, there)
        assert "unlisted" not in found
        assert list(found["sites"]) == [site.name for site in there]


@pytest.mark.extended
def test_a_line_tells_of_the_charges_of_those_it_asked_where_there_are_many(
    monkeypatch: pytest.MonkeyPatch, small: Small
) -> None:
    """The lines together tell all: the last of each site stands."""
    monkeypatch.setattr(recorder, "MOST_TOLD", 2)
    words = (
        "federation.sites=8 federation.participation=0.25 privacy.noise_multiplier=1 privacy.examples=100 "
        "compute.workers=1"
    )
    record = run_here(load(small(method="fedavg", rounds=6, set=words)))
    lines = record.metrics()[1:]
    told = [line["notes"]["spent"] for line in lines]
    assert set(told[0]) == set(lines[0]["accepted"])
    assert set(told[-1]) == set(lines[-1]["accepted"])
    together: dict[str, Any] = {}
    for each in told:
        together |= each
    asked = [site for line in lines for site in line["accepted"]]
    assert set(together) == set(asked)
    (steps,) = {together[site]["events"][0]["steps"] / asked.count(site) for site in set(asked)}
    assert steps >= 1, "what it was charged until its last round"


def test_spending_is_told_of_the_sites_that_are_named() -> None:
    spending = PrivacyBudgetUsage()
    for site in ("a", "b"):
        spending.take(site, PrivacyReport((Event("gaussian", 1.0, 1.0, 1),)))
    assert set(spending_lines(spending, 1e-5)) == {"a", "b"}
    assert set(spending_lines(spending, 1e-5, {"b", "c"})) == {"b"}
