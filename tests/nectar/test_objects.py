"""Functions, classes and methods as objects: what is found again by a name, and what is not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from small import SMALL

import nectar
from common.config.code_fingerprint import MADE, code_files
from common.config.loading import load
from common.config.text import parse_set
from common.errors import ConfigError
from common.methods import Method
from nectar.api import is_named, named
from strategies.fedavg import FedAvg

CELLS = [
    "import torch\nfrom torch import nn",
    "def net(shape, classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), nn.Linear(WIDTH, classes))",
    "WIDTH = 4\nresult = len('a call is not a constant')",
    "def data():\n    x = torch.rand(60, 8, 8, 1).numpy()\n"
    "    return {'train_images': x, 'train_labels': torch.arange(60).numpy() % 3,"
    " 'test_images': x, 'test_labels': torch.arange(60).numpy() % 3}",
    "from common.settings.fedavg import FedAvgSettings\nfrom strategies.fedavg import FedAvg\n"
    "from client_app.fedavg import FedAvgClient\nfrom common.methods import Method",
    "class MineSettings(FedAvgSettings):\n    pass",
    "class Mine(FedAvg):\n    pass",
    "MINE = Method('mine', Mine, FedAvgClient, MineSettings)",
]
"""What a notebook was given, in order."""

Cells = Callable[[], ModuleType]


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Cells:
    """Return what makes a program without a file, as a notebook's kernel is, of the cells above."""

    def make() -> ModuleType:
        main = ModuleType("__main__")
        for cell in CELLS:
            exec(cell, main.__dict__)
        monkeypatch.setitem(sys.modules, "__main__", main)
        monkeypatch.delitem(MADE, "__main__", raising=False)
        return main

    return make


def test_a_module_s_own_are_its_import_paths() -> None:
    assert named("method", FedAvg) == "strategies.fedavg:FedAvg"
    assert named("model.name", load) == "common.config.loading:load"
    assert not any(map(is_named, ("feddm", 3, None, ["feddm"], {})))


def test_what_no_name_leads_to_is_refused() -> None:
    def inside() -> None:
        pass

    nobody = Method("nobody", FedAvg, FedAvg, FedAvg)
    for given in (inside, lambda: 0, nobody):
        with pytest.raises(ConfigError, match="cannot be found again by its name"):
            named("method", given)
    with pytest.raises(ConfigError, match=r"fedavg\.lr=.* must be a number"):
        nectar.run("fedavg", **{"fedavg.lr": inside})


def test_a_script_s_run_is_known_by_its_file_and_not_by_what_draws_reports(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script, main = tmp_path / "script.py", ModuleType("__main__")
    script.write_text("import nectar\ndef net(shape, classes): ...")
    main.__dict__["__file__"] = str(script)
    exec(script.read_text(), main.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.delitem(MADE, "__main__", raising=False)
    named("model.name", main.net)
    files = code_files(load({"set": "model.name=__main__:net"}))
    assert files["__main__: script.py"] == script
    assert not [name for name in files if name.startswith("nectar")]


def test_a_comparison_takes_modules_alone(notebook: Cells) -> None:
    main = notebook()
    for call in (
        lambda: nectar.compare("fedavg", main.MINE),
        lambda: nectar.compare("fedavg", model=main.net),
    ):
        with pytest.raises(ConfigError, match="runs in separate processes"):
            call()


@pytest.mark.extended
def test_a_notebook_runs_its_own_method_model_and_data(
    notebook: Cells, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its text is in no file, so the run says that a change of it would not be noticed."""
    main = notebook()
    settings: dict[str, Any] = {k: v for k, v in parse_set(SMALL).items() if "model" not in k}
    done = nectar.run(
        main.MINE,
        model=main.net,
        dataset=main.data,
        rounds=1,
        output_dir=tmp_path,
        progress=False,
        **{**settings, "compute.workers": 2, "mine.epochs": 1},
    )
    assert done.completed
    assert (done.config.method, done.config.model.name) == ("__main__:MINE", "__main__:net")
    assert "model=net is defined in a notebook: if it changes" in caplog.text
