"""What `nectar export` writes is read again with the logits of the run, or is not there."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from federation import run
from places import ROOT
from small import SMALL

from common.division import Division
from common.errors import ConfigError
from common.samples.dataset import DatasetInfo
from nectar.cli import main
from nectar.export import bundle, formats
from nectar.export.bundle import Export, export, network_of
from nectar.export.model import ExportedModel
from nectar.records.record import RunRecord

#: a network of somebody's own, which normalises by batch, so that modes matter
OWN = """
import torch
from torch import nn

class Tiny(nn.Module):
    def __init__(self, inputs, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Linear(8, classes)

    def forward(self, x):
        return self.head(self.body(x))

def tiny(shape, classes):
    return Tiny(torch.Size(shape).numel(), classes)
"""

pytestmark = pytest.mark.extended


def recorded(place: Path, words: str = "", **keys: Any) -> RunRecord:
    given = {"output-dir": str(place / "runs"), "method": "fedavg", "rounds": 1, **keys}
    return RunRecord.open(run({**given, "set": f"{SMALL} {words}"}).directory)


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return recorded(tmp_path_factory.mktemp("formats"))


@pytest.fixture(scope="module")
def exported(past: RunRecord, tmp_path_factory: pytest.TempPathFactory) -> Export:
    return export(past, tmp_path_factory.mktemp("all") / "out", formats=("pt2", "onnx"))


def test_every_format_gives_the_runs_logits(past: RunRecord, exported: Export) -> None:
    import onnxruntime

    assert {*exported.differences} == {"safetensors", "pt2", "onnx"}
    model = network_of(Division(past.config).run, past.checkpoint())
    program = torch.export.load(exported.folder / "model.pt2").module()
    session = onnxruntime.InferenceSession(str(exported.folder / "model.onnx"))
    assert [one.shape[0] for one in (*session.get_inputs(), *session.get_outputs())] == ["n", "n"]
    for count in (1, 7):
        pixels = torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(count))
        with torch.no_grad():
            expected = model((pixels - 0.3054) / 0.3762)
            assert torch.allclose(program(pixels), expected, atol=1e-5)
        [logits] = session.run(["logits"], {"pixels": pixels.numpy()})
        assert torch.allclose(torch.from_numpy(logits), expected, atol=1e-4)


def test_the_folder_says_how_to_run_each_format(exported: Export) -> None:
    about = json.loads((exported.folder / "model.json").read_text())
    assert {name: part["file"] for name, part in about["formats"].items()} == {
        "safetensors": "model.safetensors",
        "pt2": "model.pt2",
        "onnx": "model.onnx",
    }
    assert "from 0 to 1" in about["formats"]["onnx"]["input"]
    readme = (exported.folder / "README.md").read_text()
    for block in readme.split("```python\n")[1:]:
        compile(block.partition("```")[0], "README", "exec")
    assert 'torch.export.load("model.pt2")' in readme
    assert 'InferenceSession("model.onnx")' in readme
    assert "/ 255" in readme


def test_no_file_holds_a_path_of_this_machine(exported: Export) -> None:
    for path in exported.folder.iterdir():
        content = path.read_bytes()
        for place in (ROOT, Path(sys.prefix), Path.home()):
            assert f"{place}/".encode() not in content, path.name


def test_a_network_of_ones_own_needs_no_code_as_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_networks.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    record = recorded(tmp_path, "model.name=my_networks:tiny").directory
    words = ["export", str(record), "--output", str(tmp_path / "out")]
    assert main(words) == 2
    assert "add --allow-imports my_networks" in capsys.readouterr().err
    assert main([*words, "--allow-imports", "my_networks"]) == 0
    there = {path.name for path in (tmp_path / "out").iterdir()}
    assert there == {"README.md", "model.json", "model.pt2", "model.safetensors"}
    assert ExportedModel.open(tmp_path / "out").input.shape == (1, 8, 8)
    logits = "torch.export.load('out/model.pt2').module()(torch.zeros(3, 1, 8, 8))"
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import torch; print(tuple({logits}.shape))"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "(3, 10)", done.stderr


def test_a_network_that_cannot_be_traced_keeps_weights_and_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    branches = "x = self.body(x)\n        return self.head(x if float(x.sum()) > 0 else -x)"
    source = OWN.replace("return self.head(self.body(x))", branches)
    (tmp_path / "branching_networks.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    past = recorded(tmp_path, "model.name=branching_networks:tiny")
    monkeypatch.setattr(formats, "check", lambda *_: 0.0)  # its logits depend on the batch
    done = export(past, tmp_path / "out")
    assert "the model cannot be written as pt2 (" in done.no_pt2
    there = {path.name for path in done.folder.iterdir()}
    assert there == {"README.md", "model.json", "model.safetensors"}
    assert f"There is no model.pt2: {done.no_pt2}" in (done.folder / "README.md").read_text()
    with pytest.raises(ConfigError, match=r"cannot be written as pt2 .*: leave --format pt2 out"):
        export(past, tmp_path / "asked", formats=("pt2",))
    assert not (tmp_path / "asked").exists()


def other_weights(save: Callable[..., None]) -> Callable[..., None]:
    return lambda tensors, path: save({k: t + 0.1 for k, t in tensors.items()}, path)


def test_what_does_not_read_as_the_run_had_it_is_not_written(
    past: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "save_file", other_weights(bundle.save_file))
    with pytest.raises(ConfigError, match="gives other logits than the run's model"):
        export(past, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_format_without_its_packages_says_what_to_install(
    past: RunRecord,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(formats, "find_spec", lambda _: None)
    assert main(["export", str(past.directory), "--format", "onnx"]) == 2
    assert "`.uv/bin/uv pip install -e '.[onnx]'`" in capsys.readouterr().err
    assert formats.read_formats("pt2") == ("pt2",)
    with pytest.raises(ConfigError, match="names 'onx': give pt2, onnx or both"):
        formats.read_formats("pt2,onx")


@pytest.mark.parametrize(
    "line",
    [
        "x = self.body(x).reshape(2, -1)",
        "x = self.body(x) + torch.zeros(2, 8)",
        "x = torch.stack([row for row in self.body(x)])",
        "x = self.body(x) if x.shape[0] == 2 else self.body(x) * 1",
    ],
)
def test_what_a_network_makes_constant_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    source = OWN.replace("return self.head(self.body(x))", f"{line}\n        return self.head(x)")
    (tmp_path / "constant_networks.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "constant_networks", raising=False)
    network = importlib.import_module("constant_networks").tiny((1, 8, 8), 10).eval()
    info = DatasetInfo("own", (1, 8, 8), tuple("abcdefghij"), (0.5,), (0.5,), 255.0)
    with pytest.raises(ConfigError, match="makes the number of images in a batch a constant"):
        formats.write_graphs(network, info, ["pt2"], tmp_path)
