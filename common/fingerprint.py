"""A fingerprint of the source that runs, so that a server can refuse devices that run another one.

Flower's simulation may import a ClientApp from another place than the ServerApp, and a site may have pinned an
older release; both would give quietly different numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent

PACKAGES = ("client_app", "common", "conf", "server_app", "strategies", "synth")
_SUFFIXES = (".py", ".yaml")

#: what no number of a run hangs on, given its resolved configuration: files of settings, and what sends a record home
_NOT_IN_NUMBERS = ("conf", "server_app/sending")


def source_files(root: Path) -> list[Path]:
    """Return every source file below ``root``'s packages, in a fixed order."""
    found = (p for package in PACKAGES for p in sorted((root / package).rglob("*")))
    return [p for p in found if p.suffix in _SUFFIXES and p.is_file()]


def code_files(root: Path) -> list[Path]:
    """Return the source files that can decide a run's numbers once its configuration is resolved."""
    apart = tuple(root / place for place in _NOT_IN_NUMBERS)
    return [p for p in source_files(root) if not any(p.is_relative_to(place) for place in apart)]


def fingerprint_of(root: Path, files: Sequence[Path]) -> str:
    """Return 16 hex digits over the names and contents of ``files``, named from ``root``."""
    digest = hashlib.sha256()
    for path in files:
        name, content = path.relative_to(root).as_posix().encode(), path.read_bytes()
        digest.update(b"%d:%s%d:" % (len(name), name, len(content)) + content)
    return digest.hexdigest()[:16]


@cache
def source_fingerprint() -> str:
    """Return the fingerprint of the source this process was loaded from, read once."""
    return fingerprint_of(_ROOT, source_files(_ROOT))


@cache
def code_fingerprint() -> str:
    """Return the fingerprint of the part of it that decides numbers: with equal configurations, equal runs."""
    return fingerprint_of(_ROOT, code_files(_ROOT))
