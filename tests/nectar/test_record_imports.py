"""A record from elsewhere: what it names is not imported unless the command line says so."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from federation import run
from small import Small

from common.config.loading import load
from common.config.user_parts import ImportPolicy
from common.errors import ConfigError
from nectar.api import open_record
from nectar.cli import main
from nectar.records.record_imports import import_policy_of, note_parts

pytestmark = pytest.mark.promise(
    "A site is the master of its own machine",
    "`report`, `export` and `score` import nothing that the command line did not name",
)

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


@pytest.mark.extended
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


# ---- what a run of one's own has imported -------------------------------------------------------------


@pytest.fixture
def noted(tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch) -> ImportPolicy:
    """Note the parts of a run with a model of one's own, and return what reads a record without any option."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "noted_parts.py").write_text(PARTS)
    monkeypatch.syspath_prepend(str(tmp_path / "mine"))
    note_parts(load(small(method="fedavg", set="model.name=noted_parts:net")))
    return import_policy_of("")


def test_it_is_not_asked_for_again(noted: ImportPolicy) -> None:
    noted("model.name", "noted_parts:net")
    noted("model.name", "noted_parts:net")
    assert "noted_parts" not in sys.modules


@pytest.mark.parametrize(
    "path", ["noted_parts:other", "noted_parts.net:net", "noted:net", "antigravity:x", "os:system"]
)
def test_another_name_of_its_module_is(noted: ImportPolicy, path: str) -> None:
    with pytest.raises(ConfigError, match="nothing of it was imported"):
        noted("model.name", path)


def test_a_module_of_its_name_from_elsewhere_is(
    noted: ImportPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a record came with a folder, in which the command is started."""
    (tmp_path / "mail").mkdir()
    (tmp_path / "mail" / "noted_parts.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(str(tmp_path / "mail"))
    with pytest.raises(ConfigError, match="nothing of it was imported"):
        noted("model.name", "noted_parts:net")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.chmod(0o666),
        lambda file: file.write_text("{"),
        lambda file: file.write_text("[" * 100_000),
        lambda file: file.write_text('["noted_parts:net"]'),
        lambda file: file.write_bytes(b"\xff\xfe"),
        lambda file: file.unlink(),
    ],
)
def test_a_list_that_others_can_write_or_nobody_can_read_trusts_nothing(
    noted: ImportPolicy, tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    spoil(tmp_path / "state" / "nectar" / "own-parts.json")
    with pytest.raises(ConfigError, match="nothing of it was imported"):
        noted("model.name", "noted_parts:net")


def test_a_home_that_cannot_be_written_to_stops_no_run(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    note_parts(load(small(method="fedavg", set="model.name=torch.nn:Linear")))
