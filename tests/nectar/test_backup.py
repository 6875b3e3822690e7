"""`nectar backup` and `nectar restore`: all of the SuperLink's state, and nobody back who was unregistered."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sqlite3
import stat
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deployment import nectar
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.superlink.federation import NoOpFederationManager

from nectar.operate.keys.authority import (
    fingerprint,
    make_authority,
    make_nodes,
    make_server,
    read_public,
)
from nectar.operate.keys.registry import LIST, Revoked, note_revoked

pytestmark = [
    pytest.mark.extended,
    pytest.mark.promise(
        "A federation in operation",
        "A revoked site keeps no other down, and no restore brings it back",
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
    keys, database = tmp_path / "keys", tmp_path / "superlink.db"
    make_authority(keys)
    make_server(keys, ["superlink.test"])
    public = dict(zip(SITES, make_nodes(keys, SITES), strict=True))
    superlink = SuperLink(database)
    nodes = {site: superlink.register(path) for site, path in public.items()}
    words = ["--database", str(database), "--keys", str(keys)]
    yield SimpleNamespace(
        keys=keys, database=database, public=public, superlink=superlink, nodes=nodes, words=words
    )
    superlink.stop()


def tables(database: Path) -> list[str]:
    with sqlite3.connect(database) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]


def names(backup: Path) -> list[str]:
    with tarfile.open(backup) as archive:
        return archive.getnames()


def test_a_backup_of_a_running_superlink_is_whole_where_a_copy_is_empty(
    running: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(running.database, tmp_path / "cp.db")
    assert tables(tmp_path / "cp.db") == [], "all of it is in the write-ahead log"
    backup = tmp_path / "backup.tar"
    assert nectar("backup", str(backup), *running.words) == 0
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    message = capsys.readouterr().err
    assert (
        message == "2 registered sites, 0 unregistered, 8 files of keys, with the authority's own\n"
    )
    with tarfile.open(backup) as archive:
        archive.extract("superlink.db", tmp_path / "out", filter="data")
    assert "node" in tables(tmp_path / "out" / "superlink.db")
    assert not list(tmp_path.glob(".*")), "nothing is left over"
    assert running.superlink.takes(running.public["north"]), "and it goes on"


def test_without_the_authority_its_key_is_left_out_and_the_list_always_is(
    running: SimpleNamespace, tmp_path: Path
) -> None:
    note_revoked(running.keys / LIST, [Revoked("7", "")])
    whole, less = tmp_path / "whole.tar", tmp_path / "less.tar"
    assert nectar("backup", str(whole), *running.words) == 0
    assert nectar("backup", str(less), *running.words, "--without-authority") == 0
    assert sorted(set(names(whole)) - set(names(less))) == ["keys/ca.key"]
    assert f"keys/{LIST}" not in names(whole)
    assert "keys/nodes/north.pub" in names(less)


def test_a_restore_does_not_bring_back_a_revoked_key(
    running: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the list, and where nobody wrote one by the database that is replaced."""
    backup = tmp_path / "backup.tar"
    assert nectar("backup", str(backup), *running.words) == 0
    running.superlink.state.delete_node("<none>", running.nodes["north"])
    running.superlink.stop()
    assert nectar("restore", str(backup), *running.words) == 0
    assert "unregistered again: north" in capsys.readouterr().out
    again = SuperLink(running.database)
    assert not again.takes(running.public["north"])
    assert again.takes(running.public["south"])
    again.stop()
    # the machine is lost, and the list alone was kept elsewhere: the restore above wrote it
    (listed,) = (running.keys / LIST).read_text().splitlines()[-1:]
    assert listed.split()[:3] == [
        str(running.nodes["north"]),
        fingerprint(read_public(running.public["north"])),
        "north",
    ]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(running.keys / LIST, elsewhere / LIST)
    words = ["--database", str(elsewhere / "superlink.db"), "--keys", str(elsewhere / "keys")]
    assert nectar("restore", str(backup), *words, "--revoked", str(elsewhere / LIST)) == 0
    moved = SuperLink(elsewhere / "superlink.db")
    assert [moved.takes(path) for path in running.public.values()] == [False, True]
    moved.stop()
    assert stat.S_IMODE((elsewhere / "keys/ca.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((elsewhere / "superlink.db").stat().st_mode) == 0o600
    for path in running.keys.rglob("*.*"):
        if path.name != LIST:
            assert (
                elsewhere / "keys" / path.relative_to(running.keys)
            ).read_bytes() == path.read_bytes()


def test_nobody_restores_under_a_running_superlink(
    running: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backup = tmp_path / "backup.tar"
    assert nectar("backup", str(backup), *running.words) == 0
    assert nectar("restore", str(backup), *running.words) == 2
    assert f"a SuperLink has {running.database} open: stop it first" in capsys.readouterr().err
    assert running.superlink.takes(running.public["north"])


def test_what_was_here_is_kept_and_no_key_is_written_over(
    running: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backup = tmp_path / "backup.tar"
    assert nectar("backup", str(backup), *running.words) == 0
    running.superlink.stop()
    (running.keys / "nodes/north.pub").write_text("another\n")
    (running.keys / "nodes/south.pub").unlink()
    assert nectar("restore", str(backup), *running.words) == 0
    message = capsys.readouterr().out
    assert f"kept as it is here: {running.keys}/nodes/north.pub" in message
    assert f"new: {running.keys}/nodes/south.pub" in message
    (aside,) = tmp_path.glob("superlink.db.before-*")
    assert "node" in tables(aside)
    assert f"what was here: {aside}" in message
    assert (running.keys / "nodes/north.pub").read_text() == "another\n"
    # another authority: with its server no site would speak
    shutil.rmtree(running.keys)
    make_authority(running.keys)
    before = running.database.read_bytes()
    assert nectar("restore", str(backup), *running.words) == 2
    assert "is another authority's than the backup's" in capsys.readouterr().err
    assert sorted(p.name for p in running.keys.iterdir()) == ["ca.crt", "ca.key"]
    assert running.database.read_bytes() == before


def test_who_was_unregistered_has_to_be_known(
    running: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backup, empty = tmp_path / "backup.tar", tmp_path / "empty"
    assert nectar("backup", str(backup), *running.words) == 0
    empty.mkdir()
    words = ["--database", str(empty / "superlink.db"), "--keys", str(empty / "keys")]
    assert nectar("restore", str(backup), *words) == 2
    assert f"there is no list of revocations {empty}/keys/{LIST}" in capsys.readouterr().err
    assert list(empty.iterdir()) == []
    assert nectar("restore", str(backup), *words, "--revoked", "none") == 0
    assert "2 registered sites" in capsys.readouterr().out


def test_a_database_that_cannot_be_read_is_put_aside_and_the_list_has_to_be_there(
    running: SimpleNamespace, tmp_path: Path
) -> None:
    backup = tmp_path / "backup.tar"
    assert nectar("backup", str(backup), *running.words) == 0
    running.superlink.stop()
    running.database.write_bytes(b"\0" * 50_000)
    assert nectar("restore", str(backup), *running.words) == 2
    note_revoked(running.keys / LIST, [])
    assert nectar("restore", str(backup), *running.words) == 0
    again = SuperLink(running.database)
    assert again.takes(running.public["south"])
    again.stop()


def rewritten(backup: Path, target: Path, how: str) -> None:
    """Write a backup of which a byte, a member or an end is another."""
    content = backup.read_bytes()
    if how == "cut short":
        target.write_bytes(content[: len(content) // 2])
        return
    with tarfile.open(backup) as old, tarfile.open(target, "w") as new:
        for entry in old:
            file = old.extractfile(entry)
            assert file is not None
            data = file.read()
            if how == "changed" and entry.name == "keys/ca.crt":
                data = data.replace(b"A", b"B", 1)
            if how == "lacks" and entry.name == "keys/ca.crt":
                continue
            if how == "climbs" and entry.name == "about.json":
                about = json.loads(data)
                about["sha256"]["keys/../../out"] = "0"
                data = json.dumps(about).encode()
                entry.size = len(data)
            new.addfile(entry, io.BytesIO(data))
        if how == "climbs":
            new.addfile(tarfile.TarInfo("keys/../../out"), io.BytesIO())


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("cut short", "not a backup of `nectar backup`, or it was cut short"),
        ("changed", "keys/ca.crt is not what was put into it"),
        ("lacks", "the backup is damaged: it lacks keys/ca.crt"),
        ("climbs", "'keys/../../out' has no place in it"),
    ],
)
def test_a_damaged_backup_changes_nothing(
    running: SimpleNamespace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    how: str,
    said: str,
) -> None:
    backup, damaged = tmp_path / "backup.tar", tmp_path / "damaged.tar"
    assert nectar("backup", str(backup), *running.words) == 0
    running.superlink.stop()
    rewritten(backup, damaged, how)
    there = sorted(tmp_path.rglob("*"))
    assert nectar("restore", str(damaged), *running.words) == 2
    assert said in capsys.readouterr().err
    assert sorted(
        p for p in tmp_path.rglob("*") if "-wal" not in p.name and "-shm" not in p.name
    ) == [p for p in there if "-wal" not in p.name and "-shm" not in p.name]


class Odd:
    """A backup with members of one's own beside, or instead of, those that it has."""

    def __init__(self, backup: Path) -> None:
        with tarfile.open(backup) as archive:
            self.members = [
                (entry, file.read())
                for entry in archive
                if (file := archive.extractfile(entry)) is not None
            ]
        self.about = json.loads(self.members.pop(0)[1])

    def add(self, name: str, data: bytes = b"", **how: Any) -> None:
        """Add a file, and the sum that it is to have."""
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        for key, value in how.items():
            setattr(entry, key, value)
        self.about["sha256"][name] = hashlib.sha256(data).hexdigest()
        self.members.append((entry, data))

    def write(
        self, target: Path, about: bytes | None = None, kind: bytes = tarfile.REGTYPE
    ) -> None:
        head = tarfile.TarInfo("about.json")
        content = json.dumps(self.about).encode() if about is None else about
        head.size, head.type, head.linkname = len(content), kind, "superlink.db"
        with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
            archive.addfile(head, io.BytesIO(content))
            for entry, data in self.members:
                archive.addfile(entry, io.BytesIO(data))


LARGE = 300_000_000


def sparse(odd: Odd, target: Path) -> None:
    """A member of a few bytes that is said to have 300 MB, as GNU tar 1.0 writes it."""
    stored = b"1\n0\n512\n".ljust(512, b"\0") + b"x" * 512
    headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "keys/large",
        "GNU.sparse.realsize": str(LARGE),
    }
    odd.add("keys/large", stored, pax_headers=headers)
    odd.write(target)


def old_sparse(odd: Odd, target: Path) -> None:
    """The same with the older keys."""
    headers = {"GNU.sparse.map": "0,512", "GNU.sparse.size": str(LARGE)}
    odd.add("keys/large", b"x" * 512, pax_headers=headers)
    odd.write(target)


def bad_map(odd: Odd, target: Path) -> None:
    headers = {"GNU.sparse.map": "0,y", "GNU.sparse.size": "12"}
    odd.add("keys/large", b"x" * 512, pax_headers=headers)
    odd.write(target)


def within_a_file(odd: Odd, target: Path) -> None:
    odd.add("keys/mine", b"a")
    odd.add("keys/mine/inner", b"b")
    odd.write(target)


def named(name: str) -> Callable[[Odd, Path], None]:
    def write(odd: Odd, target: Path) -> None:
        odd.add(name, b"a", pax_headers={"path": name})
        odd.write(target)

    return write


def about(content: bytes, kind: bytes = tarfile.REGTYPE) -> Callable[[Odd, Path], None]:
    return lambda odd, target: odd.write(target, content, kind)


def made(when: Any) -> Callable[[Odd, Path], None]:
    def write(odd: Odd, target: Path) -> None:
        odd.about["made"] = when
        if when is None:
            del odd.about["made"]
        odd.write(target)

    return write


def with_database(*statements: str) -> Callable[[Odd, Path], None]:
    def write(odd: Odd, target: Path) -> None:
        place = target.with_name("odd.db")
        entry, data = odd.members.pop(0)
        place.write_bytes(data)
        with sqlite3.connect(place) as connection:
            for statement in statements:
                connection.execute(statement)
        connection.close()
        odd.add(entry.name, place.read_bytes())
        place.unlink()
        odd.write(target)

    return write


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(sparse, id="sparse"),
        pytest.param(old_sparse, id="sparse, older"),
        pytest.param(bad_map, id="sparse, a map of letters"),
        pytest.param(within_a_file, id="a file within a file"),
        pytest.param(named("keys/" + "x" * 300), id="a long name"),
        pytest.param(named("keys" + "/x" * 3000), id="many folders"),
        pytest.param(named("keys/a\0b"), id="a name with a null"),
        pytest.param(about(b"[" * 100_000), id="deep JSON"),
        pytest.param(about(b"[]"), id="a list"),
        pytest.param(about(b"1" * 5000), id="a long number"),
        pytest.param(about(b"", tarfile.SYMTYPE), id="a link"),
        pytest.param(made(None), id="no time"),
        pytest.param(made([]), id="a time that is none"),
        pytest.param(
            with_database("UPDATE node SET public_key = 'a' || node_id"), id="a key as text"
        ),
        pytest.param(with_database("DROP TABLE node"), id="no table"),
    ],
)
def test_an_odd_archive_is_a_sentence_and_writes_nothing(
    how: Callable[[Odd, Path], None],
    running: SimpleNamespace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backup, odd = tmp_path / "backup.tar", tmp_path / "odd.tar"
    assert nectar("backup", str(backup), *running.words) == 0
    how(Odd(backup), odd)
    assert odd.stat().st_size < 1_000_000
    place = tmp_path / "fresh"
    place.mkdir()
    words = ["--database", str(place / "superlink.db"), "--keys", str(place / "keys")]
    written = []
    real = os.open

    def opened(path: Any, *more: Any, **named: Any) -> int:
        written.append(path)
        return real(path, *more, **named)

    monkeypatch.setattr(os, "open", opened)
    capsys.readouterr()
    assert nectar("restore", str(odd), *words, "--revoked", "none") == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "backup" in message or "database" in message
    assert list(place.iterdir()) == []
    assert not any("large" in str(path) for path in written)


def test_a_file_that_the_disk_has_no_room_for_is_refused(
    running: SimpleNamespace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backup = tmp_path / "backup.tar"
    assert nectar("backup", str(backup), *running.words) == 0
    (tmp_path / "fresh").mkdir()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    words = ["--database", str(tmp_path / "fresh" / "superlink.db"), "--keys", str(tmp_path / "k")]
    assert nectar("restore", str(backup), *words, "--revoked", "none") == 2
    assert "make room there" in capsys.readouterr().err
    assert list((tmp_path / "fresh").iterdir()) == []


def test_a_backup_goes_through_a_pipe(
    running: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a container, and back into one."""
    through = io.BytesIO()
    monkeypatch.setattr(
        sys, "stdout", SimpleNamespace(buffer=through, isatty=lambda: False, flush=lambda: None)
    )
    assert nectar("backup", "-", *running.words) == 0
    with tarfile.open(fileobj=io.BytesIO(through.getvalue())) as archive:
        assert archive.getnames()[:2] == ["about.json", "superlink.db"]
    monkeypatch.undo()
    running.superlink.stop()
    through.seek(0)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=through))
    assert nectar("restore", "-", *running.words) == 0


def test_what_cannot_be_backed_up_is_one_sentence(
    running: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "backup.tar"
    keys = ["--keys", str(running.keys)]
    cases = {
        "Missing option '--database'": [str(target), *keys],
        "there is no database": [str(target), "--database", str(tmp_path / "x.db"), *keys],
        "cannot be read as the database of a SuperLink": [
            *(str(target), "--database", str(running.keys / "ca.crt"), *keys)
        ],
        "there is no directory of keys": [
            *(str(target), "--database", str(running.database), "--keys", str(tmp_path / "k"))
        ],
        "unexpected extra argument (b)": ["a", "b", *running.words],
    }
    for message, words in cases.items():
        assert nectar("backup", *words) == 2
        assert message in capsys.readouterr().err
    assert not target.exists()
    assert nectar("restore", str(target), *running.words) == 2
    assert f"the backup {target} cannot be read" in capsys.readouterr().err
    target.write_text("mine")
    assert nectar("backup", str(target), *running.words) == 2
    assert "is there already, and no backup is written over" in capsys.readouterr().err
    assert target.read_text() == "mine"
