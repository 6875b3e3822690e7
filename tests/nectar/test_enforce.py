"""`nectar keys enforce`: a database that was put back by the page's lines, and nobody back who was unregistered."""

from __future__ import annotations

import re
import shutil
import sqlite3
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from deployment import nectar
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.superlink.federation import NoOpFederationManager
from places import ROOT

from nectar.engines.flower.federation import Node
from nectar.operate.keys.authority import (
    fingerprint,
    make_authority,
    make_nodes,
    make_server,
    read_public,
)
from nectar.operate.keys.registry import LIST, note_revoked

pytestmark = [
    pytest.mark.extended,
    pytest.mark.promise(
        "A federation in operation",
        "A revoked site keeps no other down, and stays out of a database that is put back by the recipe",
    ),
]

SITES = ("north", "south")


class SuperLink:
    """What a SuperLink does with its database, in its own words."""

    def __init__(self, database: Path) -> None:
        self.state = SqlLinkState(
            str(database), NoOpFederationManager(), ObjectStoreFactory().store()
        )
        self.state.initialize()

    def register(self, public: Path) -> int:
        key = public_key_to_bytes(read_public(public))
        return self.state.create_node("<none>", "<none>", key, 0.0, name=public.stem)

    def takes(self, public: Path) -> bool:
        """Whether a SuperNode with this key is let in."""
        node = self.state.get_node_id_by_public_key(public_key_to_bytes(read_public(public)))
        return node is not None and self.state.activate_node(node, 30.0)

    def stop(self) -> None:
        assert self.state._engine is not None
        self.state._engine.dispose()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A SuperLink with two registered sites, at work."""
    keys, database = tmp_path / "keys", tmp_path / "fl" / "superlink.db"
    database.parent.mkdir()
    make_authority(keys)
    make_server(keys, ["superlink.test"])
    public = dict(zip(SITES, make_nodes(keys, SITES), strict=True))
    superlink = SuperLink(database)
    nodes = {site: superlink.register(path) for site, path in public.items()}
    note_revoked(keys / LIST, [])
    yield SimpleNamespace(
        place=tmp_path,
        keys=keys,
        database=database,
        public=public,
        superlink=superlink,
        nodes=nodes,
        enforce=["keys", "enforce", str(keys / LIST), "--database", str(database)],
    )
    superlink.stop()


def typed(place: Path, number: int) -> None:
    """Type a block of the page's chapter on backups, without its line of `nectar`."""
    page = (ROOT / "docs" / "operator.md").read_text()
    chapter = page.partition("\n## Backup\n")[2].partition("\n## ")[0]
    block = re.findall(r"```bash\n(.*?)```", chapter, re.DOTALL)[number]
    block = re.sub(r" &&\n +nectar .*", "", block)
    subprocess.run(["bash", "-euc", block], cwd=place, check=True)


def back_up(place: Path) -> Path:
    typed(place, 0)
    return place / "monday.tar"


def put_back(place: Path) -> None:
    typed(place, 1)


def test_the_archive_of_a_running_superlink_is_whole_and_has_no_list(
    running: SimpleNamespace, tmp_path: Path
) -> None:
    shutil.copy(running.database, tmp_path / "cp.db")
    with sqlite3.connect(tmp_path / "cp.db") as connection:
        assert not connection.execute("SELECT name FROM sqlite_master").fetchall()
    backup = back_up(running.place)
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    with tarfile.open(backup) as archive:
        names = archive.getnames()
        archive.extract("monday/superlink.db", tmp_path / "out", filter="data")
    assert {"keys/ca.key", "keys/nodes/north.pub"} <= set(names)
    assert not any(LIST in name for name in names)
    with sqlite3.connect(tmp_path / "out/monday/superlink.db") as connection:
        assert connection.execute("SELECT count(*) FROM node").fetchone() == (2,)
    assert running.superlink.takes(running.public["north"]), "and it goes on"


def test_who_was_unregistered_stays_out_by_the_list_or_the_replaced_database(
    running: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backup = back_up(running.place)
    running.superlink.state.delete_node("<none>", running.nodes["north"])
    running.superlink.stop()
    put_back(running.place)
    replaced = ["--replaced", str(running.database.parent / "before" / "superlink.db")]
    assert nectar(*running.enforce, *replaced) == 0
    assert capsys.readouterr().out == "unregistered again: north\nregistered: south\n"
    again = SuperLink(running.database)
    assert not again.takes(running.public["north"])
    assert again.takes(running.public["south"])
    again.stop()
    # the machine is lost, and the list alone was kept elsewhere: the line above wrote it
    (listed,) = (running.keys / LIST).read_text().splitlines()[-1:]
    known = fingerprint(read_public(running.public["north"]))
    assert listed.split()[:3] == [str(running.nodes["north"]), known, "north"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(running.keys / LIST, elsewhere / LIST)
    with tarfile.open(backup) as archive:
        archive.extract("monday/superlink.db", elsewhere, filter="data")
    database = elsewhere / "monday" / "superlink.db"
    assert nectar("keys", "enforce", str(elsewhere / LIST), "--database", str(database)) == 0
    moved = SuperLink(database)
    assert [moved.takes(path) for path in running.public.values()] == [False, True]
    moved.stop()


def test_no_key_that_is_here_is_written_over(running: SimpleNamespace) -> None:
    back_up(running.place)
    running.superlink.stop()
    (running.keys / "nodes/north.pub").write_text("another\n")
    (running.keys / "nodes/south.pub").unlink()
    put_back(running.place)
    assert (running.keys / "nodes/north.pub").read_text() == "another\n"
    assert (running.keys / "nodes/south.pub").is_file()


def test_what_cannot_be_enforced_is_a_sentence_and_changes_nothing(
    running: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = ["--database", str(running.database)]
    cases = {
        f"a SuperLink has {running.database} open: stop it first": running.enforce,
        "Missing option '--database'": running.enforce[:3],
        "there is no database": [*running.enforce[:3], "--database", str(tmp_path / "x.db")],
        "cannot be read as the database": [*running.enforce[:3], "--database", running.enforce[2]],
    }
    for message, words in cases.items():
        assert nectar(*words) == 2
        assert message in capsys.readouterr().err
    assert running.superlink.takes(running.public["north"])
    running.superlink.stop()
    assert nectar("keys", "enforce", str(tmp_path / LIST), *database) == 2
    assert f"{tmp_path / LIST} does not exist" in capsys.readouterr().err
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"\0" * 50_000)
    assert nectar(*running.enforce, "--replaced", str(damaged)) == 2
    assert f"{damaged} cannot be read" in capsys.readouterr().err
    assert nectar("keys", "enforce", "none", *database) == 0
    assert capsys.readouterr().out == "unregistered again: no site\nregistered: north, south\n"


def test_a_key_that_is_on_the_list_by_its_number_alone_stays_out(
    running: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    note_revoked(running.keys / LIST, [Node("", str(running.nodes["south"]), "offline")])
    running.superlink.stop()
    assert nectar(*running.enforce) == 0
    assert capsys.readouterr().out == "unregistered again: south\nregistered: north\n"
