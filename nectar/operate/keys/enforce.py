"""Keeps revoked sites revoked after a SuperLink's older database is restored.

An older database has sites registered that were unregistered since it was copied. They are unregistered again before a
SuperLink opens it. Flower keeps its runs and nodes in SQLite's WAL mode and does not checkpoint it at its end: all of
it may be in the neighbouring file that ends in `-wal`, and the file itself may have no tables.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from common.errors import one_line
from nectar.engines.flower.federation import UNREGISTERED, Node
from nectar.operate.keys.authority import KeysError, pem_fingerprint
from nectar.operate.keys.registry import find, note_revoked, revoked


def enforce(database: Path, listed: Path | None, replaced: Path | None) -> list[str]:
    """Unregister the revoked sites in a database; return a line on those, and a line on its members.

    Parameters
    ----------
    database : Path
        What flower-superlink is given as --database.
    listed : Path or None
        The list of revocations; who was unregistered in ``replaced`` is put on it. None if no site ever was.
    replaced : Path, optional
        The database that was there before, whose unregistered sites stay out too.

    Raises
    ------
    KeysError
        If a SuperLink has the database open, or a database or the list is not there or cannot be read. Nothing is
        changed then.
    """
    with _opened(database) as connection:
        _require_closed(connection, database)
        if listed is not None and not listed.exists():
            raise KeysError(
                f"{listed} does not exist: without it, sites unregistered since the backup would be registered "
                "again. Copy the list there, or type none if no site was ever unregistered"
            )
        gone = revoked(listed) if listed else []
        if replaced is not None:
            with _opened(replaced) as before:
                gone += [n for n in _nodes(before).values() if n.status == UNREGISTERED]
        members = {i: n for i, n in _nodes(connection).items() if n.status != UNREGISTERED}
        again = {i: n for i, n in members.items() if find(gone, n.node, n.fingerprint)}
        now = datetime.now(UTC).isoformat()
        with connection:
            connection.executemany(
                "UPDATE node SET status = ?, unregistered_at = ?, online_until = NULL WHERE node_id = ?",
                [(UNREGISTERED, now, i) for i in again],
            )
    if listed is not None:
        note_revoked(listed, gone)
    left = [node for i, node in members.items() if i not in again]
    return [f"unregistered again: {_names(again.values())}", f"registered: {_names(left)}"]


def _names(nodes: Iterable[Node]) -> str:
    return ", ".join(node.site or f"node {node.node}" for node in nodes) or "no site"


@contextlib.contextmanager
def _opened(database: Path) -> Iterator[sqlite3.Connection]:
    """Open a SuperLink's database; KeysError if it is missing, not a SuperLink's, or damaged."""
    if not database.is_file():
        raise KeysError(f"there is no database {database}: name the --database of flower-superlink")
    place = f"file:{quote(str(database))}?mode=rw"
    try:
        with contextlib.closing(sqlite3.connect(place, uri=True, timeout=10)) as connection:
            yield connection
    except (sqlite3.Error, TypeError, ValueError) as error:
        raise KeysError(
            f"{database} cannot be read as the database of a SuperLink of this Flower ({one_line(str(error))})"
        ) from None


def _require_closed(connection: sqlite3.Connection, database: Path) -> None:
    """Refuse a database that a SuperLink has open: only a connection that is alone with it can leave WAL mode."""
    try:
        connection.execute("PRAGMA journal_mode=DELETE").fetchone()
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise KeysError(f"a SuperLink has {database} open: stop it first") from None
        raise


def _nodes(connection: sqlite3.Connection) -> dict[int, Node]:
    """Return a database's nodes by their numbers there: SQLite has Flower's, of 64 bits, as signed ones."""
    rows = connection.execute("SELECT node_id, public_key, name, status, unregistered_at FROM node")
    return {
        number: Node(name or "", str(number % 2**64), status, day or "", pem_fingerprint(key))
        for number, key, name, status, day in rows
    }
