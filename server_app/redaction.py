"""Secrets that records of earlier releases hold: the words of Flower's process stood there, with its token."""

from __future__ import annotations

import json
import re
from typing import Any

PROVENANCE = "provenance.json"

HIDDEN = "(removed)"
"""What stands in the place of a secret."""

#: an option whose value is one
_OPTION = re.compile(r"--?[\w-]*(token|secret|password|key)", re.IGNORECASE)

#: longer than any checksum of a record, which has 64; of small letters, as Flower writes its token
_LONG = re.compile(r"[0-9a-f]{65,}")


def redacted(value: Any) -> Any:
    """Return a value of a record's provenance without what could be a secret."""
    if isinstance(value, dict):
        return {key: redacted(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return _words([redacted(inner) for inner in value])
    return _LONG.sub(HIDDEN, value) if isinstance(value, str) else value


def redacted_file(name: str, content: bytes) -> bytes:
    """Return the content of a record's file without secrets: of its provenance, and of a page made of it."""
    if name == PROVENANCE:
        return _redacted_json(content)
    return (
        _LONG.sub(HIDDEN, content.decode(errors="replace")).encode()
        if holds_words(name)
        else content
    )


def holds_words(name: str) -> bool:
    """Whether a record's file, by its name in the record, may hold the words of a process."""
    return name == PROVENANCE or name.endswith((".html", ".htm"))


def _redacted_json(content: bytes) -> bytes:
    """Return a provenance.json without secrets; the same bytes where there is none."""
    try:
        before = json.loads(content)
        after = redacted(before)
    except (ValueError, RecursionError):
        return _LONG.sub(HIDDEN, content.decode(errors="replace")).encode()
    if after == before:
        return content
    return (json.dumps(after, indent=2, ensure_ascii=False) + "\n").encode()


def _words(words: list[Any]) -> list[Any]:
    """Hide what follows an option for a secret, as ``--token X`` or ``--token=X``."""
    kept: list[Any] = []
    hide = False
    for word in words:
        name, equals, _ = word.partition("=") if isinstance(word, str) else ("", "", "")
        secret = _OPTION.fullmatch(name) is not None
        if secret and equals:
            kept.append(f"{name}={HIDDEN}")
        else:
            kept.append(HIDDEN if hide else word)
        hide = secret and not equals
    return kept
