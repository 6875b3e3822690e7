"""A fingerprint of the source that runs, so that a server can refuse devices that run another one.

Flower's simulation may import a ClientApp from another place than the ServerApp, and a site may have pinned an
older release; both would give quietly different numbers.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

PACKAGES = ("client_app", "common", "conf", "server_app", "strategies", "synth")
_SUFFIXES = (".py", ".yaml")


def source_files(root: Path) -> list[Path]:
    """Return every source file below ``root``'s packages, in a fixed order."""
    found = (p for package in PACKAGES for p in sorted((root / package).rglob("*")))
    return [p for p in found if p.suffix in _SUFFIXES and p.is_file()]


def fingerprint_of(root: Path) -> str:
    """Return 16 hex digits over the names and contents of the source files below ``root``."""
    digest = hashlib.sha256()
    for path in source_files(root):
        name, content = path.relative_to(root).as_posix().encode(), path.read_bytes()
        digest.update(b"%d:%s%d:" % (len(name), name, len(content)) + content)
    return digest.hexdigest()[:16]


@cache
def source_fingerprint() -> str:
    """Return the fingerprint of the source this process was loaded from, read once."""
    return fingerprint_of(Path(__file__).resolve().parent.parent)
