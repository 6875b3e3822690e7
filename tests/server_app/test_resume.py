"""A run that is killed and continued gives the numbers of one that never stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from federation import last, numbers, resumed, run, same, same_end
from places import HELPERS
from small import SMALL, Small

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

FEDGEN = "fedgen.hidden=8 fedgen.noise=4 fedgen.generator_steps=3 fedgen.generator_batch=16"
DENSE = (
    "dense.server_iterations=2 dense.generator_steps=2 dense.generator_batch=8 dense.student_batch=8 dense.width=4 "
    "dense.noise=4 dense.padding=1 dense.distil=every"
)
#: two global models, and a surrogate of another depth
FEDDGM = (
    "feddgm.together=2 data.images=200 model.depth=2 feddgm.epochs=2 feddgm.ipc=2 feddgm.iterations=3 "
    "feddgm.inner_epochs=3 feddgm.global_epochs=2 feddgm.surrogate_epochs=2 feddgm.global_models=mlp,convnet "
    "feddgm.generator=pixels feddgm.depths=partition-1:1"
)
FEDSSYN = (
    "data.images=200 fedssyn.width=2 fedssyn.multipliers=1 fedssyn.blocks=1 fedssyn.attention= fedssyn.epochs=2 "
    "fedssyn.batch=32 fedssyn.diffusion_steps=8 fedssyn.sampling_steps=2 fedssyn.sampler=second-order "
    "fedssyn.inner=scaffold federation.participation=0.67"
)
DISTILLED = (
    "data.images=200 fedssyn.source=distilled fedssyn.start_from_images=on fedssyn.inner=scaffold "
    "wire.images=uint8"
)
FEDDPMS = (
    "model.name=vae model.depth=1 model.embedding=6 fedvae.preliminary_rounds=2 fedvae.epochs=1 feddpms.smallest=1 "
    "feddpms.copies=4 feddpms.classes=2"
)

#: method, settings, after which round it stands still, and all its rounds
STATEFUL = [
    ("feddm", WARM, 2, 4),
    ("feddm", f"{WARM} feddm.keep=2", 2, 4),
    ("feddm", f"{WARM} feddm.keep=0 feddm.image_weighting=counts", 2, 4),
    ("feddm", "feddm.global_models=mlp,convnet feddm.global_epochs=3", 1, 3),
    ("fedaf", f"{WARM} fedaf.local_epochs=1", 2, 4),
    ("real", "real.redraw=on", 2, 4),
    ("fedavg", "federation.participation=0.67", 2, 4),
    ("flwr.serverapp.strategy:FedAdam", "strategy.eta=0.05", 2, 4),
    ("flwr.serverapp.strategy:FedYogi", "", 2, 4),
    ("flwr.serverapp.strategy:FedAdagrad", "", 2, 4),
    ("flwr.serverapp.strategy:FedAvgM", "strategy.server_momentum=0.9", 2, 4),
    ("flwr.serverapp.strategy:FedTrimmedAvg", "", 2, 4),
    ("flwr.serverapp.strategy:FedMedian", "", 2, 4),
    ("flwr.serverapp.strategy:Krum", "", 2, 4),
    ("fedgen", FEDGEN, 2, 4),
    ("fedgen", f"{FEDGEN} federation.participation=0.67", 2, 4),
    ("dense", DENSE, 1, 3),
    ("feddf", "image_training.epochs=3", 1, 3),
    ("fedmd", "image_training.epochs=3 distil.keep=sites federation.participation=0.67", 2, 4),
    ("feddgm", f"{FEDDGM} feddgm.warm=on", 1, 3),
    ("feddgm", f"{FEDDGM} feddgm.warm=off", 1, 3),
    # behind round 1 the images are shuffled, behind 2 the shares are out and control variates have moved
    *(("fedssyn", FEDSSYN, stood, 4) for stood in (1, 2, 3)),
    *(("fedssyn", DISTILLED, stood, 4) for stood in (1, 2)),
    # in each stage; T_p stays 2, which two fifths of the longer run would not be
    *(("feddpms", FEDDPMS, stood, 6) for stood in (1, 2, 3, 4)),
]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str, int], Record]:
    """Return a maker of runs that never stood still; each is made once."""

    @cache
    def make(method: str, settings: str, rounds: int) -> Record:
        output = str(tmp_path_factory.mktemp("unbroken"))
        keys = {"method": method, "rounds": rounds, "output-dir": output}
        return run({**keys, "set": f"{SMALL} {settings}"})

    return make


@pytest.mark.parametrize(("method", "settings", "stood", "rounds"), STATEFUL)
def test_continued_equals_unbroken(
    small: Small,
    unbroken: Callable[[str, str, int], Record],
    method: str,
    settings: str,
    stood: int,
    rounds: int,
) -> None:
    whole = unbroken(method, settings, rounds)
    part = run(small(method=method, rounds=stood, set=settings))
    continued = resumed(part, rounds)
    assert continued.directory == part.directory
    assert numbers(continued) == numbers(whole)
    assert same_end(whole, continued)
    one, other = last(whole).models, last(continued).models
    assert one.keys() == other.keys()
    assert all(same(one[name], other[name]) for name in one)


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


def test_best_follows_the_validation_share(small: Small) -> None:
    record = run(small(rounds=3, method="fedavg"))
    reached = {line["round"]: line["validation"]["accuracy"] for line in record.metrics()[1:]}
    best = Checkpoint.load(record.best)
    assert best.validation_accuracy == max(reached.values())
    assert reached[best.server_round] == max(reached.values())
    assert isinstance(record, Record)
