"""A record by its directory, its id or `latest`, wherever one is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from federation import run
from small import Small

import nectar
from nectar import cli
from nectar.arguments import parse_arguments
from nectar.records.outputs import with_recorded
from nectar.records.record import record_at


@pytest.fixture
def records(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two records in the output directory that the environment names, the newer one last; elsewhere we are."""
    output = tmp_path / "runs"
    monkeypatch.setenv("NECTAR_RUNS", str(output))
    monkeypatch.chdir(tmp_path)
    older, newer = (run(small(method="fedavg", rounds=1)).directory for _ in range(2))
    early = older.rename(older.with_name(f"20000101-000000-{older.name.partition('-')[2]}"))
    return [early, newer]


@pytest.mark.extended
def test_each_command_takes_the_directory_the_id_and_latest(
    records: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    older, newer = records
    for word, meant in ((older.name, older), (str(older), older), ("latest", newer)):
        assert record_at(word) == meant
        assert nectar.open(word).directory == meant
        assert cli.main(["report", word]) == 0
        assert (meant / "report.html").is_file()
        assert cli.main(["export", word, "--output", f"{meant.name}-{len(word)}"]) == 0
        asked = with_recorded(parse_arguments([f"resume={word}", "rounds=2"]))
        assert (asked["resume"], asked["method"]) == (str(meant), "fedavg")
    capsys.readouterr()
    assert cli.main(["runs", "--remove", "latest", "--yes"]) == 0
    assert not newer.exists()
    assert record_at("latest") == older


def test_a_run_goes_on_by_the_id_in_an_output_directory_of_its_own(
    records: list[Path], tmp_path: Path
) -> None:
    elsewhere = records[1].rename(tmp_path / records[1].name)
    word = f"resume={elsewhere.name}"
    assert with_recorded(parse_arguments([word]))["resume"] == str(elsewhere), (
        "what is here comes first"
    )
    there = tmp_path / "others"
    there.mkdir()
    moved = elsewhere.rename(there / elsewhere.name)
    found = with_recorded(parse_arguments(["resume=latest", f"output-dir={there}"]))
    assert found["resume"] == str(moved)
