"""No token or key in a record, a page or a log: none is written, and what old records hold is not passed on."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from federation import run

from nectar.cli import main as nectar
from nectar.records.resume import with_recorded
from server_app.record import Record
from server_app.redaction import HIDDEN, redacted
from server_app.sending.packing import pack
from server_app.sending.request import Request

Small = Callable[..., dict[str, Any]]

TOKEN = "0123456789abcdef" * 16


@pytest.fixture
def old(small: Small) -> Record:
    """Make a record as an earlier release left it, with a page."""
    record = run(small(rounds=1))
    words = ["flwr-simulation", "--serverappio-api-address", "127.0.0.1:9", "--token", TOKEN]
    record.note(command=words, continued=[{"command": [f"--token={TOKEN}", "x"]}])
    assert TOKEN in (record.directory / "provenance.json").read_text()
    (record.directory / "report.html").write_text(f"<code>flwr-simulation --token {TOKEN}</code>")
    return record


def test_words_behind_an_option_for_a_secret_are_hidden() -> None:
    digest = "ab" * 32
    content = {
        "command": ["flwr", "--token", "short", "--auth-token=short", "rounds=3", TOKEN],
        "data": {"sha256": digest},
        "seed": 3,
    }
    assert redacted(content) == {
        "command": ["flwr", "--token", HIDDEN, f"--auth-token={HIDDEN}", "rounds=3", HIDDEN],
        "data": {"sha256": digest},
        "seed": 3,
    }


def test_an_old_records_token_is_on_no_page(old: Record, tmp_path: Path) -> None:
    to = tmp_path / "page.html"
    assert nectar(["report", str(old.directory), "--output", str(to)]) == 0
    assert TOKEN not in to.read_text()
    assert "flwr-simulation" in to.read_text()


def test_it_is_in_no_export(old: Record, tmp_path: Path) -> None:
    assert nectar(["export", str(old.directory), "--output", str(tmp_path / "export")]) == 0
    files = [path for path in (tmp_path / "export").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]


def test_it_does_not_come_home(old: Record) -> None:
    packed = pack(old.directory.parent, Request(old.id))
    with zipfile.ZipFile(io.BytesIO(packed.content)) as archive:
        for name in archive.namelist():
            assert TOKEN.encode() not in archive.read(name), name
        assert json.loads(archive.read("provenance.json"))["outcome"] == "completed"
        assert archive.read("config.yaml") == (old.directory / "config.yaml").read_bytes()


def test_what_continues_an_old_record_removes_it(old: Record) -> None:
    run(with_recorded({"resume": str(old.directory), "rounds": 2}))
    provenance = (old.directory / "provenance.json").read_text()
    assert TOKEN not in provenance
    assert json.loads(provenance)["outcome"] == "completed"


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
