"""What a run was of, nodes in one process or SuperNodes of their own, as its record, its report and its log say it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from federation import run
from small import SMALL

from client_app.app import app as client_app
from common.config.loading import load
from common.sites import Site, engine_of
from nectar.engines.local_grid import LocalGrid
from nectar.records.record import RunRecord
from nectar.report import page as pages
from nectar.report.view import View
from server_app.app import serve
from server_app.record import Record
from strategies.exchange import membership

SITES = ("north", "south", "east")


def describe_silent(record: Record) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Return provenance, partition and the report's page."""
    provenance, partition = (
        json.loads((record.directory / name).read_text())
        for name in ("provenance.json", "partition.json")
    )
    return provenance, partition, pages.page([View(RunRecord.open(record.directory))])


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, str]:
    """A run over nodes as SuperNodes of their own are: named sites with shares of the digits; and its log."""
    import logging

    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda entry: lines.append(entry.getMessage())  # type: ignore[method-assign]
    logging.getLogger("flwr").addHandler(handler)
    run_config = {"output-dir": str(tmp_path_factory.mktemp("runs")), "rounds": 1}
    run_config["set"] = SMALL.replace("federation.sites=3", "federation.sites=10")
    nodes = [
        {"site": site, "partition-id": i, "num-partitions": 3, "simulated": False}
        for i, site in enumerate(SITES)
    ]
    try:
        record = serve(LocalGrid(client_app, nodes, run_config), load(run_config))
    finally:
        logging.getLogger("flwr").removeHandler(handler)
    return record, "\n".join(lines)


@pytest.mark.extended
def test_a_federation_is_none_of_a_simulation(deployed: tuple[Record, str]) -> None:
    provenance, partition, page = describe_silent(deployed[0])
    assert provenance["engine"] == "superlink"
    assert partition["simulated"] is False
    assert {name: row["partition"] for name, row in partition["sites"].items()} == {
        site: i for i, site in enumerate(SITES)
    }
    assert "This was a simulation" not in page
    assert "The sites were nodes of their own at a SuperLink" in page


def test_its_log_names_the_sites_and_gives_no_advice_for_simulations(
    deployed: tuple[Record, str],
) -> None:
    message = deployed[1]
    table = message.partition("images of each class by site:\n")[2].splitlines()[1:4]
    assert [line.split()[0] for line in table] == list(SITES)
    assert "partition-0" not in message
    assert "num-supernodes" not in message
    assert "For 10, start 10 SuperNodes, each with num-partitions=10 in its node config" in message


@pytest.mark.extended
def test_its_report_shows_the_real_images_beside_those_sent(deployed: tuple[Record, str]) -> None:
    """Shares of a data set that is at hand here: the control needs no simulation."""
    _, _, page = describe_silent(deployed[0])
    assert "the sites' images were never on this machine" not in page
    assert "nearest" in page.lower()
    assert "Images by site and class" in page


@pytest.mark.extended
def test_a_simulation_says_so(tmp_path: Path) -> None:
    provenance, partition, page = describe_silent(
        run({"output-dir": str(tmp_path), "rounds": 1, "set": SMALL})
    )
    assert provenance["engine"] == "in-process"
    assert partition["simulated"] is True
    assert "This was a simulation" in page


def test_one_node_of_its_own_makes_a_federation() -> None:
    sites = [Site("a", 1, 5, engine="ray"), Site("b", 2, 5, engine="superlink")]
    assert engine_of(sites) == "superlink"
    assert engine_of(sites[:1]) == "ray"
    assert engine_of([]) == "in-process"


def test_an_engine_that_there_is_not_is_nonsense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client_app.app.engine_of_context", lambda context: "<b>" * 40)
    grid = LocalGrid(client_app, 1, {"set": SMALL})
    question = membership.Question(classes=0, held_out=False, max_examples=10_000)
    call = membership.RollCall(grid, question)
    call.ask(grid.get_node_ids(), time.monotonic() + 5.0)
    (why,) = call.refused.values()
    assert "answered the roll call with something else" in why
