"""What a ServerApp tells programs that read its log: a line of its own, marked, with JSON behind the mark.

Nothing that a site says can pass for one: it is quoted within lines that begin otherwise, with its line ends taken out.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import suppress
from typing import Any, Literal

Kind = Literal["record", "stopped", "sites", "round", "completed"]
"""Where the run's record lies, as ``directory``; why the run stopped, as ``reason``; who takes part, as ``nodes``, from
the site's name to its node's number; which round was ``reached`` of how many, ``of``, and
the seconds that are ``left``, where a round was measured; that all is done and written,
with the record's ``directory``."""

_LINE = re.compile(r"nectar-(?P<kind>record|stopped|sites|round|completed) (?P<content>\{.*\})")


def tell(kind: Kind, **content: Any) -> None:
    """Print a marked line."""
    # In one piece: other threads print lines too.
    sys.stdout.write(f"nectar-{kind} {json.dumps(content)}\n")
    sys.stdout.flush()


def told(line: str, kind: Kind) -> dict[str, Any]:
    """Return what a line of a log tells of ``kind``; nothing if it is none of these, or damaged."""
    found = _LINE.fullmatch(line.rstrip())
    if found is not None and found["kind"] == kind:
        with suppress(ValueError, RecursionError):
            return dict(json.loads(found["content"]))
    return {}


def is_marked(line: str) -> bool:
    """Whether a line of a log is for programs, and none for people."""
    return _LINE.fullmatch(line.rstrip()) is not None
