"""One site of three is killed, frozen or cut off at each of eight steps of its exchange: the run goes on.

`pytest tests/deployment/test_fault_phases.py -m faults` runs every fault at every step and prints the table of
docs/promised.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
from data_files import forget_loaded
from fault_steps import FAULTS, SENTENCES, SITES, STEPS, STRUCK, WITHIN, Row, config_of
from federation import MissingGrid, numbers

from client_app.app import app as client_app
from common.config.loading import load
from server_app.app import serve

pytestmark = [
    pytest.mark.faults,
    pytest.mark.promise(
        "A fault at any step",
        "No round is lost or doubled, the site is taken back, and all figures equal those of one "
        "process that missed the same replies",
    ),
]


@pytest.mark.parametrize(
    ("fault", "step"),
    [*itertools.product(FAULTS, STEPS), *WITHIN],
)
def test_a_run_goes_on_without_the_struck_site_and_takes_it_back(
    rows: dict[tuple[str, str], Future[Row]],
    fault: str,
    step: str,
    record_property: Callable[[str, object], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """No round is lost or doubled, and all numbers are those of a federation that missed these replies."""
    row = rows[fault, step].result()
    record_property("row", f"| {fault} | {STEPS[step].what} | {row} |")
    assert not row.ended, row.said
    assert set(row.rejected.values()) <= SENTENCES
    lines = row.record.metrics()
    assert [line["round"] for line in lines] == list(range(len(lines)))
    forget_loaded(monkeypatch)
    missed = {(s, n["round"]) for s in SITES for n in lines[1:] if s not in n["accepted"]}
    assert {site for site, _ in missed} <= {STRUCK}
    directory = row.record.directory.parent.parent
    config = config_of(tmp_path) | {"rounds": len(lines) - 1, "output-dir": str(tmp_path / "runs")}
    nodes = [{"site": s, "partition-id": i, "num-partitions": 3} for i, s in enumerate(SITES)]
    lost = missed & row.kept
    grid = MissingGrid(client_app, nodes, config, absent=missed - lost, lost=lost)
    same = ("accepted", "test", "devices", "floats_up")
    for there, here in zip(lines, numbers(serve(grid, load(config))), strict=True):
        assert {k: there[k] for k in same} == {k: here[k] for k in same}, directory
