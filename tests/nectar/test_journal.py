"""The server's journal: what its database has of runs and sites, a line each, kept when the database is not."""

from __future__ import annotations

import json
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.constant import TaskType
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.superlink.federation import NoOpFederationManager

from nectar.arguments import submitter
from nectar.cli import main
from nectar.operate.journal import journal_of
from nectar.operate.keys.authority import fingerprint, make_authority, make_nodes, read_public


class Server:
    """A SuperLink's database, and who asks."""

    def __init__(self, directory: Path) -> None:
        self.database = directory / "superlink.db"
        self.keys = directory / "keys"
        make_authority(self.keys)
        (self.public,) = make_nodes(self.keys, ["north"])
        self.state = SqlLinkState(
            str(self.database), NoOpFederationManager(), ObjectStoreFactory().store()
        )
        self.state.initialize()

    def run(self, outcome: str = "completed", **asked: str) -> str:
        kind = TaskType.SERVER_APP
        run = self.state.create_run(
            *("nectar/nectar-fl", "0.2.0", "ab" * 32, asked, "@none/default", None, "<id:none>"),
            primary_task_type=kind,
        )
        with sqlite3.connect(self.database) as connection:
            connection.execute(
                "UPDATE task SET finished_at = '2026-11-27 22:42:44.789970+00:00', sub_status = ? WHERE task_id = "
                "(SELECT primary_task_id FROM run WHERE run_id = ?)",
                (outcome, run if run < 2**63 else run - 2**64),
            )
        return str(run)

    def register(self) -> int:
        key = public_key_to_bytes(read_public(self.public))
        return self.state.create_node("<none>", "<none>", key, 0.0, name="north")

    def journal(self, *more: str) -> int:
        return main(["journal", "--database", str(self.database), *more])

    def lines(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in journal_of(self.database).read_text().splitlines()]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    assert made.state._engine is not None
    made.state._engine.dispose()


def test_it_says_who_submitted_stopped_fetched_registered_and_revoked(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    node = server.register()
    run = server.run("stopped", typed="nectar submit lab method=fedavg", by="ana@lab")
    fetch = server.run(fetch="20261127-a-record", by="ben@home")
    server.state.delete_node("<none>", node)
    assert server.journal() == 0
    lines = server.lines()
    assert [json.loads(text) for text in capsys.readouterr().out.splitlines()] == lines
    found = {(line["what"], line.get("run", line.get("node"))): line for line in lines}
    submitted = found["submitted", run]
    assert (submitted["by"], submitted["account"]) == ("ana@lab", "")
    assert submitted["words"] == "nectar submit lab method=fedavg"
    assert submitted["app"] == "ab" * 32
    assert found["stopped", run]["time"] == "2026-11-27T22:42:44Z"
    assert found["fetched", fetch]["record"] == "20261127-a-record"
    assert found["registered", str(node)]["key"] == fingerprint(read_public(server.public))
    assert found["revoked", str(node)]["site"] == "north"
    assert len(found) == len(lines) == 5
    assert all(line["time"].endswith("Z") for line in lines)


def test_it_only_grows_and_outlives_its_database(
    server: Server, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first = server.run(by="ana@lab")
    server.journal()
    before = journal_of(server.database).read_bytes()
    assert stat.S_IMODE(journal_of(server.database).stat().st_mode) == 0o600
    server.journal()
    assert journal_of(server.database).read_bytes() == before
    second = server.run("failed")
    server.journal()
    assert journal_of(server.database).read_bytes().startswith(before)
    with sqlite3.connect(server.database) as connection:
        connection.execute("DELETE FROM run")
    capsys.readouterr()
    assert server.journal("--all") == 0
    told = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert {line["run"] for line in told} == {first, second}
    assert {line["outcome"] for line in told if line["what"] == "ended"} == {"completed", "failed"}


def test_a_backup_brings_it_up_to_date_and_keeps_it(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.run(by="ana@lab")
    words = ["--database", str(server.database), "--keys", str(server.keys)]
    assert main(["backup", str(tmp_path / "backup.tar"), *words]) == 0
    kept = journal_of(server.database).read_bytes()
    assert b"ana@lab" in kept
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    there = ["--database", str(elsewhere / "superlink.db"), "--keys", str(elsewhere / "keys")]
    assert main(["restore", str(tmp_path / "backup.tar"), *there, "--revoked", "none"]) == 0
    assert journal_of(elsewhere / "superlink.db").read_bytes() == kept
    longer = elsewhere / "superlink.db.journal.jsonl"
    longer.write_bytes(kept + kept.splitlines()[0].replace(b"submitted", b"ended!") + b"\n")
    assert main(["restore", str(tmp_path / "backup.tar"), *there, "--revoked", "none"]) == 0
    assert longer.read_bytes().startswith(kept)
    assert len(longer.read_bytes()) > len(kept), "what is here stays"


def test_a_damaged_journal_is_named_and_holds_up_no_backup(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.run()
    journal_of(server.database).write_text('{"what": "submitted"\n')
    assert server.journal() == 2
    assert "line 1 is not a line of the journal" in capsys.readouterr().err
    words = ["--database", str(server.database), "--keys", str(server.keys)]
    assert main(["backup", str(tmp_path / "backup.tar"), *words]) == 0
    assert "NOT brought up to date" in capsys.readouterr().err


def test_what_somebody_wrote_into_a_run_is_quoted_and_bounded(server: Server) -> None:
    server.run(by='x"\n{"what": "revoked"}', typed="y" * 10_000)
    server.journal()
    assert len(journal_of(server.database).read_text().splitlines()) == len(server.lines()) == 2
    (submitted,) = (line for line in server.lines() if line["what"] == "submitted")
    assert len(submitted["words"]) == 2000


def test_there_has_to_be_a_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["journal", "--database", str(tmp_path / "none.db")]) == 2
    assert "there is no database" in capsys.readouterr().err
    shutil.copy(__file__, tmp_path / "other.db")
    assert main(["journal", "--database", str(tmp_path / "other.db")]) == 2


def test_who_submits_says_so() -> None:
    assert "@" in str(submitter()["by"])
