"""A method in a folder outside the clone: its settings, its devices' phase and its strategy, wherever methods go."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from federation import numbers, run
from small import Small

from common.config.loading import load
from common.methods import METHODS, Method, is_foreign, resolve
from nectar.comparison.request import CompareOptions, Variant, parse, read_variant
from nectar.records.record import RunRecord
from nectar.report.view import View

METHOD = '''
"""Weights drawn towards the round's start by a share that is a setting."""

from client_app.device import DeviceClient, phase
from client_app.local_training import train_locally
from common.methods import Method
from common.settings.base import setting
from common.settings.fedavg import FedAvgSettings
from common.wire.weights import Weights
from strategies.fedavg import FedAvg
from strategies.base import Instruction


class DampedSettings(FedAvgSettings):
    """Sites send a part of the way that they went."""

    part: float = setting(0.5, "the part of the way that is sent", gt=0, le=1)

    def remark(self):
        return f"Each site went {self.part:g} of the way."


class DampedClient(DeviceClient):
    @phase("damped")
    def damped(self, w):
        model, _ = train_locally(self, w)
        part = self.settings(DampedSettings).part
        new = Weights.of(model, w.codec).tensors
        return Weights({k: t + (part * (new[k] - t)).to(t.dtype) for k, t in w.tensors.items()}, w.codec)


class Damped(FedAvg):
    def instructions(self, server_round, weights, sites):
        instruction = Instruction("damped", weights, self.run.spec)
        return {site.name: instruction for site in sites}


METHOD = Method("damped", Damped, DampedClient, DampedSettings)
SPELT = Method("spelt", "damping:Damped", "damping:DampedClient", "damping:DampedSettings")
NO_STRATEGY = Method("without", DampedSettings, DampedClient, DampedSettings)
NO_CLIENT = Method("without", Damped, Damped, DampedSettings)
'''

NET = """
from torch import nn
def net(shape, classes):
    return nn.Sequential(nn.Conv2d(shape[0], 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
                         nn.Linear(4 * (shape[1] - 2) * (shape[2] - 2), classes))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "damping.py").write_text(METHOD)
    (folder / "mymodels.py").write_text(NET)
    return folder


@pytest.fixture
def _here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(folder))
    yield
    for name in ("damping", "mymodels"):
        sys.modules.pop(name, None)


@pytest.mark.extended
@pytest.mark.usefixtures("_here")
def test_it_runs_with_settings_of_its_own_and_what_it_takes_over(small: Small) -> None:
    words = "damped.part=0.25 fedavg.lr=0.2"
    config = load(small(method="damping:METHOD", set=words))
    assert config.section == "damped"
    taken = load(small(method="fedavg", set="fedavg.lr=0.2")).settings.model_dump()
    assert config.settings.model_dump() == taken | {"part": 0.25}
    assert load(config.to_run_config()).digest() == config.digest()

    whole = numbers(run(small(method="fedavg", set="fedavg.lr=0.2")))
    same = numbers(run(small(method="damping:METHOD", set="damped.part=1 fedavg.lr=0.2")))
    part = run(small(method="damping:METHOD", set=words))
    assert [line["test"] for line in same] == [line["test"] for line in whole]
    assert numbers(part)[2]["test"] != whole[2]["test"]
    assert run(small(method="damping:SPELT", set="spelt.part=0.25 fedavg.lr=0.2")).metrics()

    view = View(RunRecord.open(part.directory))
    assert (view.display_name, view.foreign) == ("damped", False)
    assert view.facts is not None
    assert view.facts.sent[-1] == "Each site went 0.25 of the way."


@pytest.mark.usefixtures("_here")
def test_a_report_of_it_can_be_had_where_it_is_not(small: Small, monkeypatch: Any) -> None:
    record = run(small(method="damping:METHOD", rounds=1))
    sys.modules.pop("damping")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not p.endswith("mine")])
    view = View(RunRecord.open(record.directory))
    assert (view.facts, view.display_name, len(view.rounds)) == (None, "METHOD", 1)


@pytest.mark.usefixtures("_here")
def test_its_parts_are_import_paths_however_they_were_given() -> None:
    paths = ("damping:Damped", "damping:DampedClient", "damping:DampedSettings")
    for name in ("METHOD", "SPELT"):
        method = resolve(f"damping:{name}")
        assert (method.strategy, method.client, method.settings) == paths
    assert is_foreign("damping:Damped")
    assert not is_foreign("damping:METHOD")
    assert resolve("damping:Damped") == Method(
        "fedavg",
        "damping:Damped",
        "client_app.fedavg:ForeignClient",
        METHODS["fedavg"].settings,
        private=True,
    )


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("NO_STRATEGY", "must inherit strategies.base.Strategy"),
        ("NO_CLIENT", "must inherit client_app.device.DeviceClient"),
    ],
)
def test_parts_of_another_kind_are_told(small: Small, name: str, sentence: str) -> None:
    with pytest.raises(Exception, match=sentence):
        run(small(method=f"damping:{name}"))


@pytest.mark.usefixtures("_here")
def test_a_comparison_reads_its_rows_and_gives_each_what_is_its_own() -> None:
    row = read_variant("half=damping:METHOD:part=0.5,model.width=8")
    assert row == Variant("half", "damping:METHOD", ("damped.part=0.5", "model.width=8"))
    words = ("fedavg", "damping:METHOD", "damped.part=0.5", "rounds=1")
    (request,) = parse(CompareOptions(words)).cells
    words = [request.words(variant, 0) for variant in request.variants]
    assert words[0] == ["rounds=1", "method=fedavg", "seed=0"]
    assert words[1] == ["damped.part=0.5", "rounds=1", "method=damping:METHOD", "seed=0"]
