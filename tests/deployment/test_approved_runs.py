"""A site whose owner approves runs, in a real federation: nothing of an app is imported before the word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deployment import Deployment
from small import Small
from waiting import until

from nectar.arguments import to_flwr
from nectar.cli import main as nectar
from nectar.engines.flower.app import SOURCE, copy_bundled
from nectar.records.record import RunRecord

pytestmark = pytest.mark.extended


def question_of(place: Path, run: str) -> dict[str, Any]:
    (path,) = place.glob(f"{run}-*.json")
    question: dict[str, Any] = json.loads(path.read_text())
    return question


def test_a_run_goes_on_once_it_is_approved_and_an_app_that_lies_is_not_imported_before(
    small: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = "federation.sites=2 federation.min_replies=1 federation.join_deadline="
    asks = small(method="fedavg", rounds=1, set=f"{more}400") | {
        "output-dir": str(tmp_path / "runs")
    }
    nodes = [f"partition-id={i} num-partitions=2" for i in range(2)]
    nodes[0] += " approve='ask'"
    place = tmp_path / "state" / "approvals"
    with Deployment(tmp_path, nodes=nodes) as federation:
        run = federation.submit(asks)
        until(lambda: [*place.glob(f"{run}-*.json")], 300)
        until(lambda: "is not approved yet" in federation.server_log(run), 120)
        digits = question_of(place, run)["digest"][:16]
        assert nectar(["site", "approve", run, digits, "--state", str(tmp_path / "state")]) == 0
        assert "the one that the Nectar installed here makes" in capsys.readouterr().out
        assert federation.wait(run) == "finished:completed"
        (record,) = map(RunRecord.open, (tmp_path / "runs").iterdir())
        assert sorted(record.rounds[-1]["accepted"]) == ["partition-0", "partition-1"]

        lying, mark = tmp_path / "lying", tmp_path / "imported"
        copy_bundled(SOURCE, lying)
        app = lying / "client_app" / "app.py"
        line = f"open({str(mark)!r}, 'a').write(os.environ['FLWR_HOME'])"
        app.write_text(f"{app.read_text()}\n{line}\n")
        words = to_flwr({**asks, "set": f"{asks['set'].replace('deadline=400', 'deadline=45')}"})
        run = str(
            federation._flwr("run", str(lying), "lab", "-c", words, "--format", "json")["run-id"]
        )
        until(lambda: [*place.glob(f"{run}-*.json")], 300)
        question = question_of(place, run)
        assert not question["own"]
        assert "NOT the one" in question["lines"][0]
        until(mark.exists, 120)  # at the site that asks for nothing
        until(lambda: "is not approved yet" in federation.server_log(run), 60)
    assert str(tmp_path / "node-1") in mark.read_text()
    assert str(tmp_path / "node-0") not in mark.read_text()
