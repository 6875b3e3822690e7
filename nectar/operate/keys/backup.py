"""A backup of the SuperLink's state as one file, and a restore that lets nobody back in who was unregistered.

A backup is a tar file: ``about.json`` with a sum of each file, the database, the server's journal, and what is in the
directory of keys.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import secrets
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from nectar.operate.journal import JournalError, bring_up_to_date, journal_of
from nectar.operate.keys.authority import (
    DIRECTORY,
    PRIVATE,
    PUBLIC,
    KeysError,
    make_directory,
    write_new,
)
from nectar.operate.keys.database import RANGE, connect, key_fingerprint, node_number, opened
from nectar.operate.keys.registry import LIST, Revoked, find, note_revoked, revoked

ABOUT, DATABASE, KEYS, AUTHORITY = "about.json", "superlink.db", "keys", "ca.key"
JOURNAL = "journal.jsonl"

FORMAT = 1

#: Flower's word for a node that may not come back
_GONE = "unregistered"

_MAX_ABOUT, _LONGEST_NAME = 10_000_000, 1000

_NONE = "that is not a backup of `nectar backup`, or it was cut short, or is of a later release"


def write_backup(database: Path, keys: Path, target: Path | BinaryIO, *, authority: bool) -> str:
    """Write a backup, for its owner alone and whole or not at all, and say what it holds; the SuperLink may run.

    Parameters
    ----------
    database : Path
        What flower-superlink was given as --database.
    keys : Path
        The directory of keys: all that is below it, the list of revocations left out, since a restore must not
        bring back an older one.
    target : Path or file
        A file that is not there yet.
    authority : bool
        Whether the authority's private key goes along.

    Raises
    ------
    KeysError
        If the database or the directory is not there, or the file is.
    """
    if not keys.is_dir():
        raise KeysError(f"there is no directory of keys {keys}: name it with --keys")
    left_out = {LIST} if authority else {LIST, AUTHORITY}
    files = [p for p in sorted(keys.rglob("*")) if p.is_file() and p.name not in left_out]
    if not files:
        raise KeysError(f"{keys} holds no keys: name the directory that `nectar keys` filled")
    # On the database's own disk, which has room for it; a temporary folder may lie in memory.
    place = database.parent if database.is_file() else None  # `_copy` says that it is not there
    with tempfile.TemporaryDirectory(prefix=".backup-", dir=place) as scratch:
        whole = Path(scratch, DATABASE)
        _copy(database, whole)
        entries = {f"{KEYS}/{path.relative_to(keys).as_posix()}": path for path in files}
        note = ""
        try:
            bring_up_to_date(database)
        except JournalError as error:  # it is kept as it is
            note = f"; NOT brought up to date: {error}"
        if journal_of(database).is_file():  # a copy, since it may grow while it is packed
            entries[JOURNAL] = Path(shutil.copy(journal_of(database), Path(scratch, JOURNAL)))
        _write({DATABASE: whole, **entries}, target)
        registered, unregistered = map(len, _members(whole))
    own = "with" if any(path.name == AUTHORITY for path in files) else "without"
    return (
        f"{registered} registered sites, {unregistered} unregistered, {len(files)} files of keys, {own} the "
        f"authority's own{note}"
    )


def _write(entries: dict[str, Path], target: Path | BinaryIO) -> None:
    if not isinstance(target, Path):
        _pack(target, entries)
        target.flush()
        return
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "wb") as file:
            _pack(file, entries)
            file.flush()
            os.fsync(file.fileno())
        os.link(part, target)  # a link, unlike a rename, replaces nothing
    except FileExistsError:
        raise KeysError(
            f"{target} is there already, and no backup is written over: name another"
        ) from None
    except OSError as error:
        what = error.filename or target
        raise KeysError(f"no backup was made: {what} cannot be used ({error.strerror})") from None
    finally:
        part.unlink(missing_ok=True)


def _pack(out: BinaryIO, entries: dict[str, Path]) -> None:
    about = {
        "format": FORMAT,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "sha256": {name: _digest(path) for name, path in entries.items()},
    }
    content = (json.dumps(about, indent=2) + "\n").encode()
    head = tarfile.TarInfo(ABOUT)
    head.size, head.mode = len(content), PRIVATE
    with tarfile.open(fileobj=out, mode="w|") as archive:
        archive.addfile(head, io.BytesIO(content))
        for name, path in entries.items():
            status, entry = path.stat(), tarfile.TarInfo(name)
            entry.size, entry.mtime = status.st_size, int(status.st_mtime)
            entry.mode = status.st_mode & 0o777
            with path.open("rb") as file:
                archive.addfile(entry, file)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def restore(source: BinaryIO, database: Path, keys: Path, listed: Path | None) -> list[str]:
    """Put a backup's database and keys where the SuperLink looks for them, and say what was done, a line each.

    Parameters
    ----------
    database : Path
        What flower-superlink is given as --database. One that is there is put aside.
    keys : Path
        The directory of keys; what is missing there is put there, and nothing that is there is written over.
    listed : Path or None
        The list of revocations; None if nobody was unregistered since the backup was made.

    Raises
    ------
    KeysError
        If the backup is damaged or none, a SuperLink has the database open, the keys here are of another authority,
        or nobody knows who was unregistered. Nothing is changed then.
    """
    if database.is_file() and _is_open(database):
        raise KeysError(f"a SuperLink has {database} open: stop it first")
    if not database.parent.is_dir():
        raise KeysError(f"there is no folder {database.parent} for the database: make it first")
    gone = _revocations(database, listed)
    with tempfile.TemporaryDirectory(prefix=".restore-", dir=database.parent) as scratch:
        made = _unpack(source, Path(scratch))
        staged = Path(scratch, DATABASE)
        again = _unregister_again(staged, gone)
        registered, _ = _members(staged)
        new, kept = _sorted_out(Path(scratch, KEYS), keys)
        for folder in sorted({here.parent for here in new}):
            make_directory(folder)
        write_new({here: (p.read_bytes(), p.stat().st_mode & 0o777) for here, p in new.items()})
        note_revoked(listed or keys / LIST, gone)
        aside = _put_database(staged, database)
        longer = _put_journal(Path(scratch, JOURNAL), database)
    names = ", ".join(entry.site or f"node {entry.node}" for entry in again)
    return [
        f"{database} is as it was on {made}: {len(registered)} registered sites",
        *([f"unregistered again: {names}"] if again else []),
        *(f"new: {file}" for file in new),
        *(f"kept as it is here: {file}" for file in kept),
        *([f"what was here: {aside}"] if aside else []),
        *([f"the journal is the backup's: {longer}"] if longer else []),
    ]


def _revocations(database: Path, listed: Path | None) -> list[Revoked]:
    """Return who was unregistered: by the list, and by the database that is replaced, where it can be read."""
    gone = revoked(listed) if listed else []
    try:
        return [*gone, *_members(database)[1]]
    except KeysError:
        if listed and not listed.exists():
            raise KeysError(
                f"there is no list of revocations {listed}, and no readable database here either: a site that was "
                "unregistered since the backup would be a member again. Put your copy of the list there, or say "
                "--revoked none if there was none"
            ) from None
    return gone


def _unpack(source: BinaryIO, folder: Path) -> str:
    """Write a backup's files below ``folder``, each with the sum that it says; return when it was made."""
    try:
        with tarfile.open(fileobj=source, mode="r|") as archive:
            entries = iter(archive)
            about = _about(archive, next(entries, None))
            sums: dict[str, str] = about["sha256"]
            for entry in entries:
                path = folder / _checked(entry, sums)
                if entry.size > (free := shutil.disk_usage(folder).free):
                    sizes = f"{entry.size / 1e6:.0f} MB, and {folder} has room for {free / 1e6:.0f}"
                    raise KeysError(f"{entry.name} of the backup has {sizes}: make room there")
                path.parent.mkdir(DIRECTORY, parents=True, exist_ok=True)
                mode = PUBLIC if entry.mode & 0o077 else PRIVATE
                number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
                with os.fdopen(number, "wb") as out:
                    shutil.copyfileobj(archive.extractfile(entry) or io.BytesIO(), out)
                if _digest(path) != sums.pop(entry.name):
                    raise KeysError(
                        f"the backup is damaged: {entry.name} is not what was put into it"
                    )
    except OSError as error:  # also of a name that this system refuses, or that lies within a file
        raise KeysError(f"the backup cannot be unpacked ({error.strerror or error})") from None
    except (tarfile.TarError, EOFError, LookupError, TypeError, ValueError, ArithmeticError):
        raise KeysError(_NONE) from None
    except RecursionError:
        raise KeysError(_NONE) from None
    if sums:
        raise KeysError(f"the backup is damaged: it lacks {next(iter(sums))}")
    return str(about["made"])


def _about(archive: tarfile.TarFile, entry: tarfile.TarInfo | None) -> dict[str, Any]:
    """Return what a backup says of itself; ValueError, LookupError or TypeError if it is not one."""
    if entry is None or entry.name != ABOUT or not entry.isreg() or entry.issparse():
        raise ValueError(ABOUT)
    file = archive.extractfile(entry)
    about: dict[str, Any] = json.loads(file.read(_MAX_ABOUT)) if file else {}
    if about["format"] != FORMAT or about["sha256"][DATABASE] is None:
        raise ValueError(about["format"])
    datetime.fromisoformat(about["made"])
    return about


def _checked(entry: tarfile.TarInfo, left: dict[str, str]) -> str:
    """Return a member's name, if it may be written: a plain file, in its place, whose bytes are all in the backup."""
    path = PurePosixPath(entry.name)
    fits = entry.name in (DATABASE, JOURNAL) or (path.parts[:1] == (KEYS,) and path.parts[1:])
    fits = fits and ".." not in path.parts and len(entry.name) <= _LONGEST_NAME
    if not fits or not entry.isreg() or entry.issparse() or entry.name not in left:
        raise KeysError(f"the backup is damaged: {entry.name!r:.80} has no place in it")
    return entry.name


def _sorted_out(backup: Path, keys: Path) -> tuple[dict[Path, Path], list[Path]]:
    """Return which files are missing here, from the backup's, and which are here and are others."""
    files = {keys / p.relative_to(backup): p for p in sorted(backup.rglob("*")) if p.is_file()}
    new = {here: path for here, path in files.items() if not here.exists()}
    kept = [h for h, path in files.items() if h not in new and _digest(h) != _digest(path)]
    for path in kept:
        if path.name in (AUTHORITY, "ca.crt"):  # with another one the sites trust no server
            raise KeysError(
                f"{path} is another authority's than the backup's, and no key is ever written over: restore into "
                "another directory of keys, or move this one away"
            )
    return new, kept


def _put_journal(staged: Path, database: Path) -> Path | None:
    """Put a backup's journal where there is none: one that is here has all that the backup's has, and more."""
    journal = journal_of(database)
    if journal.exists() or not staged.is_file():
        return None
    write_new({journal: (staged.read_bytes(), PRIVATE)})
    return journal


def _put_database(staged: Path, database: Path) -> Path | None:
    """Put a database in its place in one step, the one that is there beside it."""
    with staged.open("rb") as file:
        os.fsync(file.fileno())
    aside = None
    if database.exists():
        aside = database.with_name(f"{database.name}.before-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
        os.link(database, aside)
        for end in ("-wal", "-shm", "-journal"):  # what SQLite kept beside an unreadable one
            with contextlib.suppress(FileNotFoundError):
                Path(f"{database}{end}").replace(f"{aside}{end}")
    staged.replace(database)
    return aside


# The SuperLink's database, as a whole.


def _copy(database: Path, target: Path) -> None:
    """Write a copy as one file, log included, by SQLite's own backup; KeysError if there is no such database."""
    target.touch(PRIVATE, exist_ok=False)
    with opened(database) as source, contextlib.closing(sqlite3.connect(target)) as to:
        source.backup(to)
        to.execute("PRAGMA journal_mode=DELETE")


def _members(database: Path) -> tuple[list[Revoked], list[Revoked]]:
    """Return a database's sites, registered and unregistered; KeysError if it is not a SuperLink's, or damaged."""
    with opened(database) as connection:
        rows = connection.execute(
            "SELECT node_id, public_key, name, status, unregistered_at FROM node"
        ).fetchall()
        sites = [
            (
                status,
                Revoked(str(node_number(node)), key_fingerprint(key), name or "", (day or "")[:10]),
            )
            for node, key, name, status, day in rows
        ]
    return [s for status, s in sites if status != _GONE], [
        s for status, s in sites if status == _GONE
    ]


def _unregister_again(database: Path, listed: Sequence[Revoked]) -> list[Revoked]:
    """Unregister in a database that no SuperLink has open whoever is on a list; return who was a member until now."""
    registered, _ = _members(database)
    gone = [site for site in registered if find(listed, site.node, site.fingerprint)]
    now = datetime.now(UTC).isoformat()
    with opened(database) as connection, connection:
        for site in gone:
            node = int(site.node)
            connection.execute(
                "UPDATE node SET status = ?, unregistered_at = ?, online_until = NULL WHERE node_id = ?",
                (_GONE, now, node - RANGE if node >= RANGE // 2 else node),
            )
    return gone


def _is_open(database: Path) -> bool:
    """Return whether a SuperLink has a database open: the last one to leave WAL mode has to be alone with it."""
    with contextlib.closing(connect(database)) as connection:
        try:
            connection.execute("PRAGMA journal_mode=DELETE").fetchone()
        except sqlite3.OperationalError as error:
            return "locked" in str(error)
        except sqlite3.DatabaseError:
            return False
    return False
