"""The server's journal: who submitted, stopped and fetched runs, which sites were registered and revoked, and when.

It is made of the SuperLink's database, so that it has what was done by whatever program, and only grows: a line of JSON
for each event, with the time in UTC, which stays when the database is lost or replaced. Nothing of a site's data.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common.config.keys import BY, FETCH, TYPED
from common.errors import NectarError
from common.storage.files import open_regular
from nectar.operate.keys.database import key_fingerprint, node_number, opened

#: characters of a text that somebody who reaches the Control API chose
_LONGEST = 2000

#: what Flower writes where there are no accounts
_NOBODY = ("", "<id:none>", "<none>")

_RUNS = """
    SELECT run.run_id, run.flwr_aid, run.fab_version, run.fab_hash, run.override_config,
           task.pending_at, task.finished_at, task.sub_status
    FROM run JOIN task ON task.task_id = run.primary_task_id
"""

_NODES = "SELECT node_id, owner_aid, name, public_key, registered_at, unregistered_at FROM node"


class JournalError(NectarError):
    """A journal that cannot be read or written."""


def journal_of(database: Path) -> Path:
    """Return where a database's journal lies: beside it."""
    return database.with_name(f"{database.name}.journal.jsonl")


def bring_up_to_date(database: Path) -> list[dict[str, Any]]:
    """Append to the journal what the database has and it lacks, and return these lines; the SuperLink may run.

    Raises
    ------
    KeysError
        If there is no such database of a SuperLink.
    JournalError
        If the journal is damaged, or cannot be written.
    """
    path = journal_of(database)
    known = {_identity(line) for line in lines_of(path)}
    new = [event for event in _events(database) if _identity(event) not in known]
    if not new and path.exists():
        return []
    text = "".join(json.dumps(event, ensure_ascii=True) + "\n" for event in new)
    try:
        number = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with os.fdopen(number, "a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise JournalError(
            f"{path} cannot be written ({error.strerror}): make room for it"
        ) from None
    return new


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return a journal's lines; none where there is no journal; JournalError naming a line that is damaged."""
    try:
        content = path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise JournalError(f"{path} cannot be read ({error})") from None
    found = []
    for number, text in enumerate(content.splitlines(), 1):
        try:
            line = json.loads(text)
            _identity(line)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise JournalError(
                f"{path}, line {number} is not a line of the journal: put back the copy of the newest backup"
            ) from None
        found.append(line)
    return found


def _identity(line: dict[str, Any]) -> tuple[str, str]:
    return str(line["what"]), str(line.get("run", line.get("node", "")))


def _events(database: Path) -> list[dict[str, Any]]:
    with opened(database) as connection:
        found = [*_runs(connection), *_nodes(connection)]
    return sorted(found, key=lambda event: (event["time"], event["what"]))


def _runs(connection: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    for number, account, version, app, override, begun, ended, status in connection.execute(_RUNS):
        run = {"run": str(node_number(number))}
        asked = _asked(override)
        who = {"account": "" if account in _NOBODY else _text(account), "by": _text(asked.get(BY))}
        if asked.get(FETCH):
            what, more = "fetched", {"record": _text(asked[FETCH])}
        else:
            what, more = "submitted", {"words": _text(asked.get(TYPED)), "app": _text(app)}
        if begun:
            yield {
                "time": _time(begun),
                "what": what,
                **run,
                **who,
                **more,
                "release": _text(version),
            }
        if ended and what == "submitted":
            outcome = _text(status)
            yield {
                "time": _time(ended),
                "what": "stopped" if outcome == "stopped" else "ended",
                **run,
                "outcome": outcome,
            }


def _nodes(connection: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    for number, account, name, key, registered, unregistered in connection.execute(_NODES):
        node = {
            "node": str(node_number(number)),
            "site": _text(name),
            "key": key_fingerprint(key),
            "account": "" if account in _NOBODY else _text(account),
        }
        if registered:
            yield {"time": _time(registered), "what": "registered", **node}
        if unregistered:
            yield {"time": _time(unregistered), "what": "revoked", **node}


def _asked(override: object) -> dict[str, Any]:
    """Return a run's overrides, which whoever submitted it wrote."""
    try:
        found = json.loads(str(override))
        return found if isinstance(found, dict) else {}
    except (ValueError, RecursionError):
        return {}


def _text(value: object) -> str:
    return "" if value is None else str(value)[:_LONGEST]


def _time(text: object) -> str:
    """Return a time of the database as ISO 8601 in UTC."""
    when = datetime.fromisoformat(str(text))
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
