"""A record from elsewhere: what it names is not imported unless the command line says so."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from federation import run
from small import Small

from common.errors import ConfigError
from nectar.api import open_record
from nectar.cli import main

PARTS = """
from torch import nn
def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
"""


@pytest.fixture
def record(small: Small) -> Path:
    return run(small(method="fedavg", rounds=1)).directory


def changed(record: Path, **keys: str) -> None:
    """Have the record name other parts than it was run with."""
    path = record / "provenance.json"
    content = json.loads(path.read_text())
    content["run-config"] |= {
        k: f"{content['run-config'][k]} {v}" if k == "set" else v for k, v in keys.items()
    }
    path.write_text(json.dumps(content))


def test_nor_what_its_own_file_of_settings_names(
    record: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "antigravity", raising=False)
    path = record / "config.yaml"
    path.write_text(path.read_text().replace("method: fedavg", "method: antigravity:x"))
    assert main(["report", str(record)]) == 2
    assert "add --allow-imports antigravity" in capsys.readouterr().err
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("command", ["report", "export"])
@pytest.mark.parametrize(
    "keys",
    [
        {"method": "antigravity:x"},
        {"dataset": "antigravity:fly"},
        {"set": "model.name=antigravity:x"},
        {"dataset": "nectar.cli:main"},
        {"dataset": "common.learning.compute:use_threads"},
    ],
)
def test_nothing_that_it_names_is_imported(
    record: Path,
    command: str,
    keys: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delitem(sys.modules, "antigravity", raising=False)
    changed(record, **keys)
    assert main([command, str(record)]) == 2
    said = capsys.readouterr().err
    assert "a record can come from anywhere" in said
    assert said.count("\n") == 1
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    "keys", [{"dataset": "antigravity:fly"}, {"set": "model.name=antigravity:x"}]
)
def test_nor_where_data_looks_at_it_or_it_is_opened_in_python(
    record: Path,
    keys: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delitem(sys.modules, "antigravity", raising=False)
    changed(record, **keys)
    assert main(["data", f"resume={record}"]) == 2
    assert "add --allow-imports antigravity" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="add allow_imports=antigravity"):
        open_record(record).config  # noqa: B018
    assert "antigravity" not in sys.modules


def test_what_is_allowed_is_imported_there_too(
    record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lent_nets.py").write_text(PARTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    changed(record, set="model.name=lent_nets:net")
    assert main(["data", f"resume={record}", "--allow-imports", "lent_nets"]) == 0
    assert open_record(record, allow_imports="lent_nets").config.model.name == "lent_nets:net"


def test_what_the_line_names_and_flower_s_own_is(
    record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "borrowed_nets.py").write_text(PARTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    changed(record, set="model.name=borrowed_nets:net")
    assert main(["report", str(record)]) == 2
    assert main(["report", str(record), "--allow-imports", "borrowed_nets"]) == 0
    changed(record, set="model.name=mlp", method="flwr.serverapp.strategy:FedAdam")
    assert main(["report", str(record)]) == 0


def test_nor_what_an_export_names(
    record: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delitem(sys.modules, "antigravity", raising=False)
    about = {
        "schema": 1,
        "model": {"name": "antigravity:x"},
        "classes": ["a", "b"],
        "input": {"shape": [1, 8, 8], "scale": 16.0},
    }
    (tmp_path / "model.json").write_text(json.dumps(about))
    assert main(["score", str(tmp_path), "dataset=digits"]) == 2
    assert "add --allow-imports antigravity" in capsys.readouterr().err
    assert "antigravity" not in sys.modules
