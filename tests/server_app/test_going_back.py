"""`resume=RECORD round=N|best`: a run begins again after an earlier checkpoint, and no line is lost by it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from federation import numbers, run
from small import Small

from common.config.loading import load
from common.errors import ConfigError, FederationError
from nectar.arguments import parse_arguments, resolved
from nectar.engines.remote.submission import parse_submission
from nectar.records.outputs import recorded_config, with_recorded
from server_app.checkpoint import Checkpoint
from server_app.record import Record


def again(record: Record, told: str, **more: Any) -> Record:
    words = [f"resume={shlex.quote(str(record.directory))}", f"round={told}"]
    return run(with_recorded(parse_arguments(words) | more))


def with_best_at(record: Record, best: Record) -> None:
    """Let another run's last checkpoint be the best one."""
    record.best.write_bytes(best.last.read_bytes())


def aside(record: Record) -> list[Path]:
    return sorted(record.directory.glob("metrics.dropped-*.jsonl"))


@pytest.mark.extended
@pytest.mark.parametrize(("told", "on"), [("best", "server"), ("2", "both")])
def test_it_begins_again_behind_its_best_round_to_the_same_numbers(
    small: Small, told: str, on: str
) -> None:
    settings = f"evaluation.on={on} data.site_holdout=0.2"
    record = run(small(method="fedavg", rounds=4, set=settings))
    whole, text = numbers(record), (record.directory / "metrics.jsonl").read_bytes()
    with_best_at(record, run(small(method="fedavg", rounds=2, set=settings)))
    continued = again(record, told)
    assert numbers(continued) == whole
    (dropped,) = aside(record)
    assert dropped.read_bytes() == b"".join(text.splitlines(keepends=True)[3:])
    assert Checkpoint.load(record.last).server_round == 4
    provenance = json.loads((record.directory / "provenance.json").read_text())
    assert provenance["continued"][-1]["round"] == told


def test_a_round_without_a_checkpoint_is_refused_with_those_there_are(small: Small) -> None:
    record = run(small(method="fedavg", rounds=3))
    with_best_at(record, run(small(method="fedavg", rounds=1)))
    files = {p: p.read_bytes() for p in record.directory.rglob("*") if p.is_file()}
    with pytest.raises(FederationError, match=r"there are round=1 \(best\), round=3 \(last\)"):
        again(record, "2")
    now = {p: p.read_bytes() for p in record.directory.rglob("*") if p.is_file()}
    assert {p: b for p, b in now.items() if ".writer" not in p.name} == {
        p: b for p, b in files.items() if ".writer" not in p.name
    }


@pytest.mark.extended
def test_cut_short_it_can_be_asked_again(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its newest checkpoint is the best one already, and the lines go further."""
    record = run(small(method="fedavg", rounds=3))
    whole = numbers(record)
    with_best_at(record, run(small(method="fedavg", rounds=1)))
    record.last.write_bytes(record.best.read_bytes())
    assert numbers(again(record, "best")) == whole
    assert len(aside(record)) == 1


@pytest.mark.extended
def test_what_sites_have_forgotten_is_said(small: Small, caplog: pytest.LogCaptureFixture) -> None:
    record = run(small(method="fedavg", rounds=4))
    with_best_at(record, run(small(method="fedavg", rounds=1)))
    again(record, "1")
    assert "round 1 lies 3 rounds back, and a site keeps" in caplog.text


@pytest.mark.parametrize("told", ["0.5", "first", "-1"])
def test_what_is_no_round_is_refused(told: str) -> None:
    with pytest.raises(ConfigError, match="round must be the number of a round or best"):
        load({"resume": "/there", "round": told})


def test_without_a_record_it_is_refused_in_every_command(small: Small) -> None:
    for command in (load, resolved):
        with pytest.raises(ConfigError, match="round=best says where resume= begins again"):
            command({"round": "best"})
    with pytest.raises(ConfigError, match="round=2 says where resume= begins again"):
        parse_submission(["round=2"])


def test_every_command_hands_it_on(small: Small) -> None:
    record = run(small(method="fedavg", rounds=1))
    words = with_recorded({"resume": str(record.directory), "round": "best"})
    stated = resolved(words).to_run_config()
    assert (stated["round"], load(stated).round) == ("best", "best")
    provenance = json.loads((record.directory / "provenance.json").read_text())
    submission = parse_submission(["resume=one", "round=1"]).continuing(
        "/srv/runs/one", recorded_config(provenance)
    )
    assert submission.run_config["round"] == "1"
