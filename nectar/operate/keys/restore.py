"""Put a backup back: what was unregistered stays out, and no key that is here is written over."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from nectar.operate.keys.backup import ABOUT, AUTHORITY, DATABASE, FORMAT, KEYS, digest
from nectar.operate.keys.database import is_open, members, unregister_again
from nectar.operate.keys.files import (
    DIRECTORY,
    PRIVATE,
    PUBLIC,
    KeysError,
    make_directory,
    write_new,
)
from nectar.operate.keys.revoked import LIST, Revoked, note_revoked, revoked

#: what SQLite keeps beside a database
_BESIDE = ("-wal", "-shm", "-journal")

#: what makes an authority: with another one the sites trust no server
_OF_AUTHORITY = (AUTHORITY, "ca.crt")

_MAX_ABOUT = 10_000_000

#: characters of a name with its folders, bytes of a part of it
_LONGEST, _LONGEST_PART = 1000, 255


@dataclass(frozen=True)
class Restored:
    """What a restore did.

    Attributes
    ----------
    made : str
        When the backup was made.
    registered : int
        Sites that are members now.
    again : list of Revoked
        Those that the backup had as members, and that were unregistered since.
    new, kept : list of Path
        Files of keys that were put here, and those that are here and are others than the backup's.
    aside : Path or None
        The database that was here.
    """

    made: str
    registered: int
    again: list[Revoked]
    new: list[Path]
    kept: list[Path]
    aside: Path | None


def restore(source: BinaryIO, database: Path, keys: Path, listed: Path | None) -> Restored:
    """Put a backup's database and keys where the SuperLink looks for them, before it is started.

    Parameters
    ----------
    source : file
        The backup.
    database : Path
        What flower-superlink is given as --database. One that is there is put aside.
    keys : Path
        The directory of keys; what is missing there is put there.
    listed : Path or None
        The list of revocations; None if nobody was unregistered since the backup was made.

    Raises
    ------
    KeysError
        If the backup is damaged or none, a SuperLink has the database open, the keys here are of another authority,
        or nobody knows who was unregistered. Nothing is changed then.
    """
    if database.is_file() and is_open(database):
        raise KeysError(f"a SuperLink has {database} open: stop it first")
    folder = database.parent
    if not folder.is_dir():
        raise KeysError(f"there is no folder {folder} for the database: make it first")
    gone = _revocations(database, listed)
    with tempfile.TemporaryDirectory(prefix=".restore-", dir=folder) as scratch:
        about = _unpack(source, Path(scratch))
        staged = Path(scratch, DATABASE)
        again = unregister_again(staged, gone)
        registered, _ = members(staged)
        new, kept = _sorted_out(Path(scratch, KEYS), keys)
        _put_keys(new)
        note_revoked(listed or keys / LIST, gone)
        aside = _put_database(staged, database)
    return Restored(about, len(registered), again, [*new], kept, aside)


def _revocations(database: Path, listed: Path | None) -> list[Revoked]:
    """Return who was unregistered: by the list, and by the database that is replaced, where it can be read."""
    gone = revoked(listed) if listed else []
    try:
        gone = [*gone, *members(database)[1]]
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
            listed = frozenset(sums)
            for entry in entries:
                path = folder / _checked(entry, sums, listed)
                _require_room(entry, folder)
                path.parent.mkdir(DIRECTORY, parents=True, exist_ok=True)
                content = archive.extractfile(entry)
                assert content is not None  # `_checked` lets regular files pass alone
                mode = PUBLIC if entry.mode & 0o077 else PRIVATE
                with os.fdopen(
                    os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb"
                ) as out:
                    while block := content.read(1 << 20):
                        out.write(block)
                if digest(path) != sums.pop(entry.name):
                    raise KeysError(
                        f"the backup is damaged: {entry.name} is not what was put into it"
                    )
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError):
        raise KeysError("that is not a backup of `nectar backup`, or it was cut short") from None
    if sums:
        raise KeysError(f"the backup is damaged: it lacks {next(iter(sums))}")
    return str(about["made"])


def _about(archive: tarfile.TarFile, entry: tarfile.TarInfo | None) -> dict[str, Any]:
    known = entry is not None and entry.name == ABOUT and _is_plain(entry)
    file = archive.extractfile(entry) if entry is not None and known else None
    try:
        about = json.loads(file.read(_MAX_ABOUT)) if file else {}
        sums = about["sha256"]
        if about["format"] != FORMAT or DATABASE not in sums or not isinstance(sums, dict):
            raise ValueError(about["format"])
        datetime.fromisoformat(about["made"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise KeysError("that is not a backup of `nectar backup`, or of a later release") from None
    return dict(about)


def _require_room(entry: tarfile.TarInfo, folder: Path) -> None:
    """Refuse a file that the disk has no room for."""
    if entry.size > (free := shutil.disk_usage(folder).free):
        raise KeysError(
            f"{entry.name} of the backup has {entry.size / 1e6:.0f} MB, and {folder} has room for {free / 1e6:.0f}: "
            "make room there"
        )


def _checked(entry: tarfile.TarInfo, left: Collection[str], listed: Collection[str]) -> str:
    """Return a member's name, if it is one that may be written: of a plain file whose bytes are all in the backup."""
    path = PurePosixPath(entry.name)
    parts = path.parts
    fits = entry.name == DATABASE or (len(parts) > 1 and parts[0] == KEYS)
    fits = fits and ".." not in parts and "\0" not in entry.name and len(entry.name) <= _LONGEST
    fits = fits and max(len(os.fsencode(part)) for part in parts) <= _LONGEST_PART
    within_a_file = any(str(folder) in listed for folder in path.parents)
    if not (fits and _is_plain(entry) and entry.name in left) or within_a_file:
        raise KeysError(f"the backup is damaged: {entry.name!r:.80} has no place in it")
    return entry.name


def _is_plain(entry: tarfile.TarInfo) -> bool:
    """Whether all bytes of a file are in the archive, so that it can be no larger than that."""
    return entry.isreg() and not entry.issparse()


def _sorted_out(backup: Path, keys: Path) -> tuple[dict[Path, Path], list[Path]]:
    """Return which files are missing here, from the backup's, and which are here and are others."""
    new, kept = {}, []
    for path in sorted(path for path in backup.rglob("*") if path.is_file()):
        here = keys / path.relative_to(backup)
        if not here.exists():
            new[here] = path
        elif digest(here) != digest(path):
            kept.append(here)
    for path in kept:
        if path.name in _OF_AUTHORITY:
            raise KeysError(
                f"{path} is another authority's than the backup's, and no key is ever written over: restore into "
                "another directory of keys, or move this one away"
            )
    return new, kept


def _put_keys(new: dict[Path, Path]) -> None:
    for folder in sorted({here.parent for here in new}):
        make_directory(folder)
    contents = {
        here: (path.read_bytes(), path.stat().st_mode & 0o777) for here, path in new.items()
    }
    write_new(contents)


def _put_database(staged: Path, database: Path) -> Path | None:
    """Put a database in its place in one step, the one that is there beside it."""
    with staged.open("rb") as file:
        os.fsync(file.fileno())
    aside = None
    if database.exists():
        aside = database.with_name(f"{database.name}.before-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
        os.link(database, aside)
        for end in _BESIDE:  # what an unreadable one left
            beside = database.with_name(database.name + end)
            if beside.exists():
                beside.replace(aside.with_name(aside.name + end))
    staged.replace(database)
    return aside


def sites(entries: Sequence[Revoked]) -> str:
    """Name sites in a sentence."""
    return ", ".join(entry.site or f"node {entry.node}" for entry in entries)
