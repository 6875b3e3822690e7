"""What each release since 0.2 has left on disk is read by this one: `tests/helpers/write_fixture.py` wrote it there."""

from __future__ import annotations

import json
import shutil
import tarfile
import tomllib
from pathlib import Path

import pytest
from places import ROOT

from client_app.owner.node_config import KEYS, NodeConfig
from client_app.state import DirectoryState, names_of, slots_of, state_kind_of
from common.code.release import VERSION, release
from common.privacy.ledger import Ledger, LedgerTip
from nectar.cli import main
from nectar.records.identity import Identity
from nectar.records.record import RunRecord
from server_app.checkpoint import Checkpoint
from server_app.recorder import load_ledger_tips

RELEASES = sorted((ROOT / "tests").glob("written-by-0.[2-9]*"))

OLDER = ROOT / "tests" / "written-by-0.1"

pytestmark = pytest.mark.parametrize("written", RELEASES, ids=lambda path: path.name)


@pytest.fixture
def record(written: Path, tmp_path: Path) -> RunRecord:
    place = tmp_path / "runs" / (written / "record" / "id").read_text()
    shutil.copytree(written / "record", place)
    provenance = json.loads((place / "provenance.json").read_text())
    provenance["code"] = "0" * 16  # a later release's is another one
    (place / "provenance.json").write_text(json.dumps(provenance))
    return RunRecord(place)


@pytest.mark.extended
def test_a_record_is_listed_reported_and_exported(
    record: RunRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", f"output-dir={tmp_path / 'runs'}"]) == 0
    listed = capsys.readouterr().out
    assert record.id in listed
    assert "2/2" in listed
    assert "completed" in listed
    assert record.provenance["versions"]["nectar"].startswith("0.2")
    page = tmp_path / "page.html"
    assert main(["report", str(record.directory), "--output", str(page)]) == 0
    assert "0.2.0" in page.read_text()
    assert main(["export", str(record.directory), "--output", str(tmp_path / "model")]) == 0
    assert (tmp_path / "model" / "model.safetensors").is_file()


def test_its_checkpoint_and_its_sites_memory_are_read(record: RunRecord) -> None:
    kept = Checkpoint.load(record.last)
    assert kept.server_round == 2
    assert sorted(kept.last_accepted_round) == ["partition-0", "partition-1"]
    kind = state_kind_of(record.config)
    for site in kept.last_accepted_round:
        state = DirectoryState(record.directory, "state", site, 1, kind=kind)
        assert 2 in state.rounds(2)
        assert names_of(slots_of(state.load(2)))


@pytest.mark.extended
def test_it_is_resumed_with_leave_alone_and_says_so(
    record: RunRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    go_on = ["run", f"resume={record.directory}", f"output-dir={record.directory.parent}"]
    before = {path: path.read_bytes() for path in record.directory.rglob("*") if path.is_file()}
    assert main([*go_on, "rounds=3"]) == 2
    sentence = capsys.readouterr().err
    assert "was run by code 0000000000000000 (Nectar 0.2.0)" in sentence
    assert "or with resume_code=accept" in sentence
    assert {path: path.read_bytes() for path in before} == before
    assert main([*go_on, "rounds=3", "resume_code=accept"]) == 0
    again = RunRecord(record.directory)
    assert [line["round"] for line in again.rounds] == [0, 1, 2, 3]
    (noted,) = again.provenance["continued"]
    assert noted["resume_code"] == "accept"
    assert noted["versions"]["nectar"] == VERSION
    assert main([*go_on, "rounds=4"]) == 0, "the code that went on with it goes on"
    assert "code" not in RunRecord(record.directory).provenance["continued"][1]
    mine = Identity(again.provenance["configuration"], "0" * 16)
    assert mine.why_not(again.provenance) == "it was continued by other code"


def test_a_ledger_its_tips_and_a_node_config_are_read(written: Path, tmp_path: Path) -> None:
    shutil.copytree(written / "ledger", tmp_path / "places" / "record")
    lines = Ledger(tmp_path / "places" / "record").read()
    assert len(lines.charges) == 2
    goes_on = Ledger(tmp_path / "places" / "record").append(lines.charges[0], lambda before: None)
    assert goes_on.head.length == 3
    assert load_ledger_tips([tmp_path / "places"]) == {"north": LedgerTip(2, lines.head.sha256)}
    node = tomllib.loads((written / "node-config.toml").read_text())
    assert NodeConfig.of(node).review_seconds == 600
    assert {*node} <= {*KEYS}


def test_a_backup_is_restored(
    written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with tarfile.open(written / "backup.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    words = ["none", "--database", str(tmp_path / "superlink.db")]
    assert main(["keys", "enforce", *words]) == 0
    assert capsys.readouterr().out.endswith("registered: north\n")
    assert (tmp_path / "keys" / "nodes" / "north.pub").is_file()


def test_a_record_of_an_older_schema_is_listed_with_one_sentence(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (record,) = OLDER.iterdir()
    assert main(["runs", f"output-dir={OLDER}"]) == 0
    message = capsys.readouterr().out
    assert message.startswith(f"{record.name} was written by another release of Nectar")
    assert message.count("\n") == 1
    assert main(["runs", f"output-dir={OLDER}", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["id"], told["outcome"]) == (record.name, "unreadable")
    for command in (["report", str(record)], ["run", f"resume={record}", "resume_code=accept"]):
        assert main(command) == 2
        assert "its schema is 1" in capsys.readouterr().err


def test_the_release_says_which_it_is(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["version"] == VERSION
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"nectar {release()}\n"
    assert release().startswith(f"{VERSION} (") or not (ROOT / ".git").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["resume_code=yes"], "resume_code must be accept"),
        (["resume_code=accept"], "applies to a resumed run"),
    ],
)
def test_leave_is_given_in_one_word_and_of_a_record_alone(
    written: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *words]) == 2
    assert message in capsys.readouterr().err
