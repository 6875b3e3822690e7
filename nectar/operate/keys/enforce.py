"""Who was revoked stays out of a SuperLink's database that was put back.

An older database has sites registered that were unregistered since it was copied. They are unregistered again before a
SuperLink opens it.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from nectar.operate.keys.authority import KeysError
from nectar.operate.keys.database import RANGE, connect, key_fingerprint, node_number, opened
from nectar.operate.keys.registry import Revoked, find, note_revoked, revoked

#: Flower's word for a node that may not come back
_GONE = "unregistered"


def enforce(database: Path, listed: Path | None, replaced: Path | None) -> list[str]:
    """Unregister in a database whoever was revoked, and say who is a member, a line each.

    Parameters
    ----------
    database : Path
        What flower-superlink is given as --database.
    listed : Path or None
        The list of revocations; who was unregistered in ``replaced`` is put on it. None if nobody ever was.
    replaced : Path, optional
        The database that was there before, whose unregistered sites stay out too.

    Raises
    ------
    KeysError
        If a SuperLink has the database open, or a database or the list is not there or cannot be read. Nothing is
        changed then.
    """
    if _is_open(database):
        raise KeysError(f"a SuperLink has {database} open: stop it first")
    if listed is not None and not listed.exists():
        raise KeysError(
            f"there is no list of revocations {listed}: a site that was unregistered since the backup would be a "
            "member again. Put your copy of the list there, or say none if there was none"
        )
    gone = revoked(listed) if listed else []
    gone += _members(replaced)[1] if replaced else []
    again = _unregister_again(database, gone)
    if listed is not None:
        note_revoked(listed, gone)
    names = ", ".join(site.site or f"node {site.node}" for site in again)
    members = ", ".join(site.site or f"node {site.node}" for site in _members(database)[0])
    return [f"unregistered again: {names or 'nobody'}", f"registered: {members or 'nobody'}"]


def _members(database: Path) -> tuple[list[Revoked], list[Revoked]]:
    """Return a database's sites, registered and unregistered; KeysError if it is not a SuperLink's, or damaged."""
    sites: tuple[list[Revoked], list[Revoked]] = ([], [])
    with opened(database) as connection:
        rows = connection.execute(
            "SELECT node_id, public_key, name, status, unregistered_at FROM node"
        )
        for node, key, name, status, day in rows:
            number, known = str(node_number(node)), key_fingerprint(key)
            sites[status == _GONE].append(Revoked(number, known, name or "", (day or "")[:10]))
    return sites


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
    if not database.is_file():
        return False
    with contextlib.closing(connect(database)) as connection:
        try:
            connection.execute("PRAGMA journal_mode=DELETE").fetchone()
        except sqlite3.OperationalError as error:
            return "locked" in str(error)
        except sqlite3.DatabaseError:
            return False
    return False
