"""The SuperLink's database: Flower's SQLite file of runs and nodes.

Flower keeps it in SQLite's WAL mode and does not checkpoint it at its end: all of it may lie in the file beside it that
ends in `-wal`, and the file itself may have no tables.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from common.errors import one_line
from nectar.operate.keys.authority import KeysError, fingerprint

RANGE = 2**64
"""Flower's numbers are of 64 bits, which it writes as signed ones."""


def node_number(stored: int) -> int:
    """Return a number of Flower's as it is shown: SQLite has those of 64 bits as signed ones."""
    return stored % RANGE


@contextlib.contextmanager
def opened(database: Path) -> Iterator[sqlite3.Connection]:
    """Open a database that is there and is a SuperLink's."""
    if not database.is_file():
        raise KeysError(
            f"there is no database {database}: name the one that flower-superlink was given as --database"
        )
    try:
        with contextlib.closing(connect(database)) as connection:
            connection.execute("SELECT node_id, status, unregistered_at FROM node LIMIT 1")
            yield connection
    except (sqlite3.Error, TypeError, ValueError) as error:
        raise KeysError(
            f"{database} cannot be read as the database of a SuperLink of this Flower ({one_line(str(error))})"
        ) from None


def connect(database: Path) -> sqlite3.Connection:
    """Open a file as SQLite does, whatever it holds."""
    return sqlite3.connect(f"file:{quote(str(database))}?mode=rw", uri=True, timeout=10)


def key_fingerprint(public_key: bytes | None) -> str:
    """Return the fingerprint of a key as the database has it; empty if it is none."""
    try:
        key = load_pem_public_key(public_key or b"")
    except ValueError:
        return ""
    return fingerprint(key) if isinstance(key, ec.EllipticCurvePublicKey) else ""
