"""Lines of a ServerApp's log for programs: a mark, then JSON.

Nothing that a site says can pass for one: it is quoted within lines that begin otherwise, with its line ends taken out.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import suppress
from typing import Any, Literal

from server_app.run_directory import RunDirectory

#: bytes of a round's line at most, where only the newest is read
_LONGEST_LINE = 2**23

Kind = Literal["record", "stopped", "sites", "round", "completed", "settings"]
"""The record's directory, as ``directory``; why the run stopped, as ``reason``; who takes part, as ``nodes``, from
the site's name to its node's number; which round was ``reached`` of how many, ``of``, and
the seconds that are ``left``, where a round was measured, and the newest line's ``figures``; that all is done and
written, with the record's ``directory``; which settings the record in ``directory`` was run with, by its
provenance's ``run-config`` and ``continued``."""


def monitored(record: RunDirectory) -> dict[str, Any]:
    """Return ``figures``, what a monitor reads of a run: its newest line, room on the disk; nothing of a site's."""
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        with (record.directory / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LONGEST_LINE))
            line = json.loads(file.read().splitlines()[-1])
        spent = ((line.get("notes") or {}).get("spent") or {}).values()
        epsilons = [one["epsilon"] for one in spent if one["epsilon"] is not None]
        seconds = [v for v in line["seconds"].values() if isinstance(v, int | float)]
        figures = {
            "round": line["round"],
            "accuracy": (line.get("test") or {}).get("accuracy"),
            "replies": {
                outcome: len(line.get(outcome) or ())
                for outcome in ("accepted", "rejected", "shortened")
            },
            "bytes": {way: sum(line["bytes"][way].values()) for way in ("up", "down")},
            "seconds": round(sum(seconds), 3),
            "epsilon": max(epsilons, default=None),
            "free": shutil.disk_usage(record.directory).free,
        }
        return {"figures": figures}
    return {}


def print_marked(kind: Kind, **content: Any) -> None:
    """Print a marked line."""
    # In one piece: other threads print lines too.
    sys.stdout.write(f"nectar-{kind} {json.dumps(content)}\n")
    sys.stdout.flush()
