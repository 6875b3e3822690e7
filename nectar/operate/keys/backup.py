"""A backup of the SuperLink's state as one file: its database and the directory of keys, and a sum of each."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import secrets
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from nectar.operate.keys.database import copy, members
from nectar.operate.keys.files import PRIVATE, KeysError
from nectar.operate.keys.revoked import LIST

ABOUT, DATABASE, KEYS = "about.json", "superlink.db", "keys"
"""The names in a backup: what it is, the database, the folder of the keys."""

AUTHORITY = "ca.key"

FORMAT = 1


@dataclass(frozen=True)
class Contents:
    """What a backup holds.

    Attributes
    ----------
    registered, unregistered : int
        Sites in its database.
    keys : int
        Files of keys.
    authority : bool
        Whether the authority's private key is among them.
    """

    registered: int
    unregistered: int
    keys: int
    authority: bool


def write_backup(
    database: Path, keys: Path, target: Path | BinaryIO, *, authority: bool
) -> Contents:
    """Write a backup; the SuperLink may run meanwhile.

    Parameters
    ----------
    database : Path
        What flower-superlink was given as --database.
    keys : Path
        The directory of keys: all that lies below it, the list of revocations left out, since a restore must not
        bring back an older one.
    target : Path or file
        A file that is not there yet; it is for its owner alone from its first byte, and whole or not there.
    authority : bool
        Whether the authority's private key goes along.

    Raises
    ------
    KeysError
        If the database or the directory is not there, or the file is.
    """
    if not keys.is_dir():
        raise KeysError(f"there is no directory of keys {keys}: name it with --keys")
    files = _files(keys, authority)
    if not files:
        raise KeysError(f"{keys} holds no keys: name the directory that `nectar keys` filled")
    # On the database's own disk, which has room for it; a temporary folder may lie in memory.
    with tempfile.TemporaryDirectory(prefix=".backup-", dir=_folder(database)) as scratch:
        whole = Path(scratch, DATABASE)
        copy(database, whole)
        entries = {DATABASE: whole} | {f"{KEYS}/{name}": path for name, path in files.items()}
        with _opened(target) as out:
            _pack(out, entries)
        registered, unregistered = members(whole)
    has_authority = any(Path(name).name == AUTHORITY for name in files)
    return Contents(len(registered), len(unregistered), len(files), has_authority)


def _folder(database: Path) -> Path | None:
    return database.parent if database.is_file() else None  # `copy` says that it is not there


def _files(keys: Path, authority: bool) -> dict[str, Path]:
    left_out = {LIST} if authority else {LIST, AUTHORITY}
    found = sorted(path for path in keys.rglob("*") if path.is_file() and path.name not in left_out)
    return {path.relative_to(keys).as_posix(): path for path in found}


def _pack(out: BinaryIO, entries: dict[str, Path]) -> None:
    about = {
        "format": FORMAT,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "sha256": {name: digest(path) for name, path in entries.items()},
    }
    with tarfile.open(fileobj=out, mode="w|") as archive:
        content = (json.dumps(about, indent=2) + "\n").encode()
        head = tarfile.TarInfo(ABOUT)
        head.size, head.mode = len(content), PRIVATE
        archive.addfile(head, io.BytesIO(content))
        for name, path in entries.items():
            entry = tarfile.TarInfo(name)
            status = path.stat()
            entry.size, entry.mode, entry.mtime = (
                status.st_size,
                status.st_mode & 0o777,
                int(status.st_mtime),
            )
            with path.open("rb") as file:
                archive.addfile(entry, file)


def digest(path: Path) -> str:
    """Return a file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _opened(target: Path | BinaryIO) -> Iterator[BinaryIO]:
    """Give a file to write to, which gets its name only when it is whole."""
    if not isinstance(target, Path):
        yield target
        target.flush()
        return
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
        with os.fdopen(descriptor, "wb") as file:
            yield file
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
