"""A run that is killed and continued gives the numbers of one that never stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from federation import numbers, resumed, run, server_context
from small import Small

from client_app.state import ContextState, DirectoryState
from common.config.loading import load
from common.errors import ConfigError, FederationError
from nectar.engines.flower.log import marked_content
from nectar.records.outputs import with_recorded

pytestmark = pytest.mark.promise(
    "Records",
    "A run killed at any write goes on to the numbers of an unbroken one",
)

WARM = "feddm.start=noise feddm.warm=on"


@pytest.mark.extended
def test_devices_that_had_gone_a_round_further_go_back(small: Small) -> None:
    """Killed between the devices' work of round 3 and its checkpoint: round 3 is done again, from version 2."""
    whole = run(small(rounds=4, set=WARM))
    part = run(small(rounds=3, set=WARM))
    second = run(small(rounds=2, set=WARM))
    part.last.write_bytes(second.last.read_bytes())
    continued = resumed(part, 4)
    assert numbers(continued) == numbers(whole)


def test_a_run_killed_before_its_first_checkpoint_begins_again(small: Small) -> None:
    whole = run(small(rounds=1))
    whole.last.unlink()
    again = resumed(whole)
    assert len(again.metrics()) == 2


def test_other_settings_are_refused_by_name(small: Small) -> None:
    record = run(small(rounds=1))
    changed = with_recorded({"resume": str(record.directory), "set": "feddm.ipc=3"})
    with pytest.raises(FederationError, match=r"other settings \(feddm.ipc\)"):
        run(changed)


def test_a_server_app_that_is_asked_says_a_records_settings_and_trains_nothing(
    small: Small, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through its own entry point, with a Grid that would fail at the first touch."""
    from server_app.app import app

    record = run(small(rounds=1))
    output = str(record.directory.parent)
    nobody: Any = None
    for name in (record.id, "latest"):
        app(nobody, server_context({"settings-of": name, "output-dir": output}))
        told = marked_content(capsys.readouterr().out, "settings")
        assert told["directory"] == str(record.directory)
        assert told["run-config"] == (record.stated() or {})["run-config"]
    for name in ("nope", "../x", f"{output}/{record.id}", "."):
        with pytest.raises(FederationError, match=f"no record {name[:80]} below {output} on"):
            app(nobody, server_context({"settings-of": name, "output-dir": output}))
    stated = {"schema": 1, "run-config": {}}
    (record.directory / "provenance.json").write_text(json.dumps(stated))
    with pytest.raises(FederationError, match="its schema is 1, this one reads 2"):
        app(nobody, server_context({"settings-of": "latest", "output-dir": output}))
    with pytest.raises(ConfigError, match="settings-of only asks"):
        load({"settings-of": "latest"})


def test_deadlines_and_resources_may_change(small: Small) -> None:
    record = run(small(rounds=1))
    words = {"resume": str(record.directory), "rounds": 2, "set": "federation.round_deadline=7200"}
    continued = run(with_recorded(words))
    assert len(continued.metrics()) == 3
    provenance = json.loads((record.directory / "provenance.json").read_text())
    assert len(provenance["continued"]) == 1


@pytest.mark.parametrize("kind", ["directory", "context"])
def test_versions_of_device_state(tmp_path: Path, kind: str) -> None:
    from flwr.app import RecordDict

    state = (
        DirectoryState(tmp_path, "run", "site")
        if kind == "directory"
        else ContextState(RecordDict())
    )
    assert state.rounds() == []
    for r in (1, 2, 3, 4, 5):
        state.save(r, {"x": torch.tensor([float(r)])}, taken=1)
    assert state.rounds() == [1, 3, 4, 5]
    assert [float(state.load(r)["x"]) for r in state.rounds()] == [1.0, 3.0, 4.0, 5.0]
    state.save(4, {"x": torch.tensor([40.0])}, taken=3)
    assert float(state.load(4)["x"]) == 40.0
    assert state.rounds() == [1, 3, 4]
    assert state.base_of(4) == 3
    state.save(5, {"x": torch.zeros(1)}, taken=4)
    state.save(6, {"x": torch.zeros(1)}, taken=5)
    assert state.rounds() == [4, 5, 6]
