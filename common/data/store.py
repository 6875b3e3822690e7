"""A data set as memory-mapped arrays, of which all processes share one copy in the page cache.

A store is a folder of four .npy files, five where the training samples have natural owners, and a
store.json that records each array's SHA-256, the fingerprint of the published files it was made
from, and the description of a user-defined set. It appears by one rename and is checked whenever a process opens it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tokenize import TokenError
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock

from common.errors import DataError
from common.samples.dataset import (
    Dataset,
    DatasetInfo,
    Skipped,
    Split,
    array_digest,
    combined_checksum,
)
from common.storage.files import cache_folder
from common.storage.limits import ANYWHERE, Bounds

log = logging.getLogger("flwr")

STORE_FOLDER = "nectar-store"
SCHEMA = 1
ARRAYS = ("train-images", "train-labels", "test-images", "test-labels", "train-owners")
UNREADABLE = (
    *(OSError, ValueError, KeyError, TypeError, EOFError, SyntaxError, TokenError, RuntimeError),
    *(OverflowError, MemoryError, struct.error, zlib.error, zipfile.BadZipFile),
)
"""What NumPy's reading, or JSON's, raises of a file that is damaged: it evaluates an array's header as Python."""

# Longer than a download over a slow line; a process that dies gives its lock up at once.
LOCK_SECONDS = 3600.0


class Contents(NamedTuple):
    """The content of a store: both splits, the files left out of them, and the description of a user-defined set."""

    train: Split
    test: Split
    skipped: tuple[Skipped, ...] = ()
    about: Mapping[str, Any] = {}


@dataclass(frozen=True, eq=False)
class Stored:
    """A store's contents and the checksum over both splits."""

    train: Split
    test: Split
    checksum: str
    skipped: tuple[Skipped, ...] = ()
    folder: Path | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    def described(self, info: DatasetInfo) -> Dataset:
        """Return the data set with the description ``info`` and these contents."""
        return Dataset(info, self.train, self.test, self.checksum, self.skipped, self.folder)


class _Unusable(OSError):
    """A store that is damaged or was made from other files; the message names it and the reason."""


def store_roots(*directories: Path, bounds: Bounds = ANYWHERE) -> list[Path]:
    """Return the folders that may hold stores: below each of ``directories``, else in the user's cache.

    Where ``bounds`` name a folder, it is ``bounds.keep`` instead of the cache, and none that a link leads out of them.
    """
    roots = [directory / STORE_FOLDER for directory in directories]
    if bounds.root is not None:
        for root in roots:
            bounds.inside(root, "a store of the data directory")
        return roots if bounds.keep is None else [*roots, bounds.keep / STORE_FOLDER]
    cache = cache_folder()
    return roots if cache is None else [*roots, cache / STORE_FOLDER]


def shared_store(
    name: str,
    roots: Sequence[Path],
    fingerprint: str,
    read_source: Callable[[], Contents],
    mode: int = 0o777,
) -> Stored:
    """Return the store of ``name``, building it on first use.

    Any number of processes may call this at once: one builds, the others wait and map what it
    built.
    """
    problems: list[str] = []
    for root in roots:
        stored = _open_noting(root / name, fingerprint, problems)
        if stored:
            return stored
    for problem in problems:
        log.warning("%s; rebuilding it", problem)
    try:
        return _build(name, roots, fingerprint, read_source, mode)
    except DataError as error:
        if not problems:
            raise
        sentence = f"{problems[0]} and cannot be rebuilt: {error}"
        raise type(error)(sentence, reported=error.reported) from error


def _build(
    name: str,
    roots: Sequence[Path],
    fingerprint: str,
    read_source: Callable[[], Contents],
    mode: int,
) -> Stored:
    """Build the store in the first writable root, or keep the data in this process's memory."""

    def read() -> Contents:
        try:
            return read_source()
        except OSError as error:  # which no other place for the store would mend
            raise DataError(f"{name} cannot be read ({error})") from error

    for root in roots:
        try:
            root.mkdir(parents=True, exist_ok=True)
            with FileLock(root / f"{name}.lock", timeout=LOCK_SECONDS):
                # Another process may have built it while this one waited.
                stored = _open_noting(root / name, fingerprint, [])
                if stored is None:
                    write_store(root / name, fingerprint, read(), mode)
                    stored = open_store(root / name, fingerprint)
                    log.info("%s: wrote %s, which all local processes share", name, root / name)
                return stored
        except OSError as error:
            log.warning("%s: no store can be written to %s (%s)", name, root, error)
    log.warning("%s: no store can be written anywhere; every process keeps its own copy", name)
    train, test, skipped, about = read()
    return Stored(train, test, checksum_of(train, test), skipped, about=about)


def write_store(folder: Path, fingerprint: str, contents: Contents, mode: int) -> None:
    """Write a store under a temporary name and rename it to ``folder``, replacing what was there.

    The caller holds the lock. Nothing is synced: a store that a power failure damages does not
    check and is rebuilt from the published files.
    """
    staging = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(staging, ignore_errors=True)  # what a killed builder left
    staging.mkdir(mode)
    train, test, skipped, about = contents
    for name, array in _arrays(train, test).items():
        np.save(staging / f"{name}.npy", array, allow_pickle=False)
    record = {
        "schema": SCHEMA,
        "source": fingerprint,
        "sha256": _digests(train, test),
        "skipped": [[left.path, left.reason] for left in skipped],
        "about": dict(about),
    }
    (staging / "store.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if folder.exists():
        shutil.rmtree(folder)
    staging.replace(folder)


def open_store(folder: Path, fingerprint: str) -> Stored:
    """Map a store and check it, or raise FileNotFoundError or _Unusable."""
    content = (folder / "store.json").read_bytes()
    try:
        record = json.loads(content)
        schema, source, expected = record["schema"], record["source"], record["sha256"]
        names = ARRAYS[: len(expected)]  # not all sets have owners
        arrays = [
            np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False))
            for name in names
        ]
        digests = [array_digest(array) for array in arrays]
        recorded = [expected[name] for name in names]
        skipped = tuple(Skipped(str(path), str(reason)) for path, reason in record["skipped"])
        about = dict(record["about"])
        train, test = Split(*arrays[:2], *arrays[4:]), Split(*arrays[2:4])
    except UNREADABLE as error:
        raise _Unusable(f"the store {folder} is damaged ({error})") from error
    if schema != SCHEMA or source != fingerprint:
        raise _Unusable(f"the store {folder} was made from other files or by another version")
    for name, digest, known in zip(names, digests, recorded, strict=True):
        if digest != known:
            raise _Unusable(f"the store {folder} is damaged ({name}.npy fails its checksum)")
    return Stored(train, test, combined_checksum(digests), skipped, folder, about)


def digest_of(content: object) -> str:
    """Return the SHA-256 of what JSON can hold, in hexadecimal: what a store is known by."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def checksum_of(train: Split, test: Split) -> str:
    """Return the checksum that a store of these splits has."""
    return combined_checksum(list(_digests(train, test).values()))


def _open_noting(folder: Path, fingerprint: str, problems: list[str]) -> Stored | None:
    """Open a store if it is there and usable; what is wrong with it is added to ``problems``."""
    try:
        return open_store(folder, fingerprint)
    except _Unusable as error:
        problems.append(str(error))
        return None
    except OSError:
        return None  # missing, or not readable by this user


def _arrays(train: Split, test: Split) -> dict[str, np.ndarray]:  # the order is the checksum's
    arrays = [train.images, train.labels, test.images, test.labels, train.owners]
    return {n: array for n, array in zip(ARRAYS, arrays, strict=True) if array is not None}


def _digests(train: Split, test: Split) -> dict[str, str]:
    return {name: array_digest(array) for name, array in _arrays(train, test).items()}
