"""A run that is killed and continued gives the numbers of one that never stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from federation import numbers, resumed, run
from places import HELPERS
from small import Small

from client_app.state import ContextState, DirectoryState
from common.errors import ConfigError, FederationError
from nectar.records.outputs import with_recorded
from server_app.checkpoint import Checkpoint
from server_app.record import Record

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


KILL = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from federation import run
from server_app import recorder
keep = recorder.Recorder.__call__
def keep_and_die(self, result):
    keep(self, result)
    if result.server_round == 2:
        os.kill(os.getpid(), signal.{signal})
recorder.Recorder.__call__ = keep_and_die
run({config!r})
"""


@pytest.mark.extended
@pytest.mark.parametrize("how", ["SIGKILL", pytest.param("SIGINT", marks=pytest.mark.long)])
def test_a_killed_process_resumes(small: Small, tmp_path: Path, how: str) -> None:
    whole = run(small(rounds=3, set=WARM))
    config = small(rounds=3, set=WARM) | {"output-dir": str(tmp_path / "killed")}
    script = KILL.format(tests=str(HELPERS), signal=how, config=config)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode != 0
    (directory,) = (tmp_path / "killed").iterdir()
    continued = run(with_recorded({"resume": str(directory)}))
    assert numbers(continued) == numbers(whole)
    assert json.loads((directory / "provenance.json").read_text())["outcome"] == "completed"


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


def test_deadlines_and_resources_may_change(small: Small) -> None:
    record = run(small(rounds=1))
    words = {"resume": str(record.directory), "rounds": 2, "set": "federation.round_deadline=7200"}
    continued = run(with_recorded(words))
    assert len(continued.metrics()) == 3
    provenance = json.loads((record.directory / "provenance.json").read_text())
    assert len(provenance["continued"]) == 1


def test_a_directory_that_is_no_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a run's record"):
        with_recorded({"resume": str(tmp_path)})


def test_a_damaged_checkpoint_is_named(small: Small) -> None:
    record = run(small(rounds=1))
    record.last.write_bytes(record.last.read_bytes()[:100])
    with pytest.raises(FederationError, match=r"last.safetensors cannot be read"):
        resumed(record, 2)


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


def test_a_half_written_version_is_never_seen(tmp_path: Path) -> None:
    state = DirectoryState(tmp_path, "run", "site")
    state.save(1, {"x": torch.zeros(1)})
    (tmp_path / "run" / "site" / ".000002.safetensors.123.tmp").write_bytes(b"half")
    assert state.rounds() == [1]
    assert state.load(1)["x"].tolist() == [0.0]


@pytest.mark.extended
def test_best_follows_the_validation_share(small: Small) -> None:
    record = run(small(rounds=3, method="fedavg"))
    reached = {line["round"]: line["validation"]["accuracy"] for line in record.metrics()[1:]}
    best = Checkpoint.load(record.best)
    assert best.validation_accuracy == max(reached.values())
    assert reached[best.server_round] == max(reached.values())
    assert isinstance(record, Record)
