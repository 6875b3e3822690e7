"""What a ServerApp tells this program in its log, read: the marked lines that `server_app.marked_lines` prints."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

from server_app.marked_lines import Kind

_LINE = re.compile(
    r"nectar-(?P<kind>record|stopped|sites|round|completed|settings) (?P<content>\{.*\})"
)


def marked_content(line: str, kind: Kind) -> dict[str, Any]:
    """Return what a line of a log tells of ``kind``; nothing if it is none of these, or damaged."""
    found = _LINE.fullmatch(line.rstrip())
    if found is not None and found["kind"] == kind:
        with suppress(ValueError, RecursionError):
            return dict(json.loads(found["content"]))
    return {}


def is_marked(line: str) -> bool:
    """Return whether a line of a log is for programs, and none for people."""
    return _LINE.fullmatch(line.rstrip()) is not None
