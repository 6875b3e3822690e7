"""No token or key in a record: what it states of its command is what was typed."""

from __future__ import annotations

import json
from pathlib import Path

from federation import run
from small import Small

from nectar.cli import main as nectar


def test_the_record_states_what_was_typed(small: Small, tmp_path: Path) -> None:
    settings = [f"output-dir={tmp_path / 'runs'}", "method=fedavg", "rounds=1"]
    words = [*settings, *small()["set"].split(), "--note-record", str(tmp_path / "note")]
    assert nectar(["run", *words]) == 0
    directory = Path((tmp_path / "note").read_text().rstrip("\n"))
    provenance = json.loads((directory / "provenance.json").read_text())
    assert provenance["command"] == ["nectar", "run", *words]
    assert "typed" not in provenance["run-config"]
    from_python = run(small(method="fedavg", rounds=1))
    stated = json.loads((from_python.directory / "provenance.json").read_text())
    assert stated["command"] == ["python"]
    assert stated["configuration"] == provenance["configuration"]
