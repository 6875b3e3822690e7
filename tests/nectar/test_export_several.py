"""Runs that learned models of other architectures than the run's own: which one is exported, and as what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from federation import run
from small import Small

from common.errors import ConfigError
from nectar.export.bundle import export
from nectar.records.past_run import PastRun
from nectar.records.recorded_run import RecordedRun
from server_app.checkpoint import Checkpoint

DGM = (
    "data.images=200 model.depth=1 feddgm.epochs=1 feddgm.ipc=1 feddgm.iterations=1 feddgm.inner_epochs=1 "
    "feddgm.global_epochs=1 feddgm.surrogate_epochs=0 feddgm.generator=pixels"
)


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the check in a fresh interpreter, seconds each: test_export_formats has it."""
    monkeypatch.setattr("nectar.export.bundle.check", lambda *_: {})


def test_the_only_global_model_is_the_runs_and_need_not_be_named(
    small: Small, tmp_path: Path
) -> None:
    record = run(small(method="feddgm", rounds=1, set=f"{DGM} feddgm.global_models=mlp"))
    past = PastRun.open(record.directory)
    written = export(past, tmp_path / "out").folder
    assert json.loads((written / "model.json").read_text())["model"]["name"] == "mlp"
    network = RecordedRun(past).model
    assert type(network).__name__ == "MLP"
    learned = Checkpoint.load(record.last).model("mlp")
    assert all(torch.equal(t, learned[n]) for n, t in network.state_dict().items())


def test_of_several_one_is_named_and_is_exported_as_what_it_is(
    small: Small, tmp_path: Path
) -> None:
    record = run(small(method="feddgm", rounds=1, set=f"{DGM} feddgm.global_models=mlp,convnet"))
    past = PastRun.open(record.directory)
    with pytest.raises(ConfigError, match=r"learned 2 models, .* name one of mlp, convnet"):
        export(past, tmp_path / "none")
    for name in ("mlp", "convnet"):
        written = export(past, tmp_path / name, model=name).folder
        assert json.loads((written / "model.json").read_text())["model"]["name"] == name
