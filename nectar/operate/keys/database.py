"""The SuperLink's database: who is registered in it, and a copy of it that is whole while the SuperLink runs.

Flower keeps it in SQLite's WAL mode and does not checkpoint it at its end: all of it may lie in the file beside it
that ends in `-wal`, and the file itself may have no tables.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from common.errors import one_line
from nectar.operate.keys.files import PRIVATE, KeysError
from nectar.operate.keys.nodes import fingerprint
from nectar.operate.keys.revoked import Revoked, find

#: Flower's word for a node that may not come back, and where it writes its numbers of 64 bits as signed ones
_GONE, _RANGE = "unregistered", 2**64


def copy(database: Path, target: Path) -> None:
    """Write a copy as one file, log included, by SQLite's own backup; KeysError if there is no such database."""
    target.touch(PRIVATE, exist_ok=False)
    with _open(database) as source, contextlib.closing(sqlite3.connect(target)) as to:
        source.backup(to)
        to.execute("PRAGMA journal_mode=DELETE")


def members(database: Path) -> tuple[list[Revoked], list[Revoked]]:
    """Return a database's sites, registered and unregistered; KeysError if it is no SuperLink's, or damaged."""
    with _open(database) as connection:
        rows = connection.execute(
            "SELECT node_id, public_key, name, status, unregistered_at FROM node"
        ).fetchall()
        sites = [
            (status, Revoked(str(node % _RANGE), _fingerprint(key), name or "", (day or "")[:10]))
            for node, key, name, status, day in rows
        ]
    return [s for status, s in sites if status != _GONE], [
        s for status, s in sites if status == _GONE
    ]


def unregister_again(database: Path, listed: Sequence[Revoked]) -> list[Revoked]:
    """Unregister in a database that no SuperLink has open whoever is on a list; return who was a member until now."""
    registered, _ = members(database)
    gone = [site for site in registered if find(listed, site.node, site.fingerprint)]
    now = datetime.now(UTC).isoformat()
    with _open(database) as connection, connection:
        for site in gone:
            node = int(site.node)
            connection.execute(
                "UPDATE node SET status = ?, unregistered_at = ?, online_until = NULL WHERE node_id = ?",
                (_GONE, now, node - _RANGE if node >= _RANGE // 2 else node),
            )
    return gone


def is_open(database: Path) -> bool:
    """Tell whether a SuperLink has a database open: the last one to leave WAL mode has to be alone with it."""
    with contextlib.closing(_connection(database)) as connection:
        try:
            connection.execute("PRAGMA journal_mode=DELETE").fetchone()
        except sqlite3.OperationalError as error:
            return "locked" in str(error)
        except sqlite3.DatabaseError:
            return False
    return False


@contextlib.contextmanager
def _open(database: Path) -> Iterator[sqlite3.Connection]:
    """Open a database that is there and is a SuperLink's."""
    if not database.is_file():
        raise KeysError(
            f"there is no database {database}: name the one that flower-superlink was given as --database"
        )
    try:
        with contextlib.closing(_connection(database)) as connection:
            connection.execute("SELECT node_id, status, unregistered_at FROM node LIMIT 1")
            yield connection
    except (sqlite3.Error, TypeError, ValueError) as error:
        raise KeysError(
            f"{database} cannot be read as the database of a SuperLink of Flower 1.41 ({one_line(str(error))})"
        ) from None


def _connection(database: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(database))}?mode=rw", uri=True, timeout=10)


def _fingerprint(public_key: bytes | None) -> str:
    try:
        key = load_pem_public_key(public_key or b"")
    except ValueError:
        return ""
    return fingerprint(key) if isinstance(key, ec.EllipticCurvePublicKey) else ""
