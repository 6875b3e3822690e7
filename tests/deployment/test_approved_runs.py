"""A site whose owner approves runs, in a real federation: nothing of an app is imported before the word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deployment import Deployment
from small import Small
from waiting import until

from nectar.cli import main as nectar
from nectar.engines.flower.app import app_files
from nectar.records.record import RunRecord

pytestmark = pytest.mark.extended


def question_of(place: Path, run: str) -> dict[str, Any]:
    (path,) = place.glob(f"{run}-*.json")
    question: dict[str, Any] = json.loads(path.read_text())
    return question


def test_an_app_is_not_imported_before_its_run_is_approved_and_the_run_then_goes_on(
    small: Small, tmp_path: Path
) -> None:
    more = "federation.sites=2 federation.min_replies=1 federation.join_deadline=400"
    asks = small(method="fedavg", rounds=1, set=more) | {"output-dir": str(tmp_path / "runs")}
    nodes = [f"partition-id={i} num-partitions=2" for i in range(2)]
    nodes[0] += " approve='ask'"
    place = tmp_path / "state" / "approvals"
    lying, mark = tmp_path / "lying", tmp_path / "imported"
    for name, content in app_files().items():
        (lying / name).parent.mkdir(parents=True, exist_ok=True)
        (lying / name).write_bytes(content)
    app = lying / "client_app" / "app.py"
    line = f"open({str(mark)!r}, 'a').write(os.environ['FLWR_HOME'])"
    app.write_text(f"{app.read_text()}\n{line}\n")
    with Deployment(tmp_path, nodes=nodes) as federation:
        run = federation.submit(asks, lying)
        until(lambda: [*place.glob(f"{run}-*.json")], 300)
        question = question_of(place, run)
        assert not question["own"]
        assert "NOT the app of the installed Nectar" in question["lines"][0]
        until(mark.exists, 120)  # at the site that asks for nothing
        until(lambda: "waits for its owner's approval" in federation.server_log(run), 120)
        assert str(tmp_path / "node-1") in mark.read_text()
        assert str(tmp_path / "node-0") not in mark.read_text()
        words = [run, question["digest"][:16], "--state", str(tmp_path / "state")]
        assert nectar(["site", "approve", *words]) == 0
        assert federation.wait(run) == "finished:completed"
    (record,) = map(RunRecord.open, (tmp_path / "runs").iterdir())
    assert sorted(record.rounds[-1]["accepted"]) == ["partition-0", "partition-1"]
    assert str(tmp_path / "node-0") in mark.read_text()
