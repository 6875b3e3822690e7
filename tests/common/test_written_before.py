"""What an earlier commit wrote is read as it was meant: a record with its checkpoint, a site's memory, a ledger.

The files of tests/written_before are two rounds of SCAFFOLD with noise, of two sites, and a ledger of two charges.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from client_app.state import DirectoryState, names_of, slots_of, state_kind_of
from common.privacy.accounting import epsilon
from common.privacy.ledger import Ledger, LedgerTip, tip_from_text
from nectar.cli import main
from nectar.records.record import RunRecord
from server_app.checkpoint import Checkpoint

_BEFORE = Path(__file__).parents[1] / "written_before"
_SITES = ("partition-0", "partition-1")


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    place = tmp_path / "20261127-114525-scaffold-digits-seed3-87d89e"
    shutil.copytree(_BEFORE / "record", place)
    return RunRecord(place)


def test_a_record_is_listed_and_reported(
    record: RunRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert record.outcome == "completed"
    assert record.rounds[-1]["test"]["accuracy"] == pytest.approx(336 / 360)
    page = tmp_path / "page.html"
    main(["report", str(record.directory), "--output", str(page)])
    text = page.read_text()
    assert "scaffold" in text
    assert "0.933" in text or "93.3" in text


def test_its_checkpoint_says_what_was_taken_and_charged(record: RunRecord) -> None:
    kept = Checkpoint.load(record.directory / "checkpoint" / "last.safetensors")
    assert kept.server_round == 2
    assert kept.last_accepted_round == dict.fromkeys(_SITES, 2)
    assert sorted(kept.strategy) == ["control", "spending", "update-lengths"]


def test_each_sites_memory_is_found_under_its_kind(record: RunRecord) -> None:
    kind = state_kind_of(record.config)
    for site in _SITES:
        state = DirectoryState(record.directory, "state", site, 1, kind=kind)
        assert state.rounds(2) == [2]
        slots = slots_of(state.load(2))
        assert names_of(slots)
        assert any(tensor.abs().sum() > 0 for slot in slots.values() for tensor in slot.values())


def test_a_ledger_goes_on_from_its_last_line(tmp_path: Path) -> None:
    shutil.copytree(_BEFORE / "ledger", tmp_path / "state")
    lines = Ledger(tmp_path / "state").read()
    noted = (_BEFORE / "ledger" / "privacy.head.json").read_text()
    assert lines.head == tip_from_text(noted) == LedgerTip(2, lines.head.sha256)
    assert epsilon(lines.events, 1e-5).prv == pytest.approx(10.24, abs=0.01)
    assert Ledger(tmp_path / "state").append(lines.charges[0], lambda before: None).head.length == 3


def test_going_on_with_other_code_is_refused_in_a_sentence(
    record: RunRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in record.directory.rglob("*") if path.is_file()}
    assert main(["run", f"resume={record.directory}", "rounds=3"]) == 2
    assert "continue it with the release that began it" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before
