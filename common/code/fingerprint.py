"""A checksum of the whole app in 16 hex digits, by which a server refuses sites that run another one.

Flower's simulation may import a ClientApp from another place than the ServerApp, and a site may have pinned an
older release; both would give quietly different numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

PACKAGES = ("client_app", "common", "server_app", "strategies", "synth")
"""The packages of the app that sites get."""

ROOT = Path(__file__).resolve().parents[2]
"""Their folder."""

_SUFFIXES = {".py", ".yaml", ".json"}


def source_files(root: Path) -> list[Path]:
    """Return every file of the app below ``root`` in a fixed order: source, and the files of settings."""
    folders = sorted([*PACKAGES, "conf"])
    found = (path for folder in folders for path in sorted((root / folder).rglob("*")))
    return [path for path in found if path.suffix in _SUFFIXES and path.is_file()]


def fingerprint_of(root: Path, files: Iterable[Path]) -> str:
    """Return 16 hex digits over the names and contents of ``files``, named from ``root``."""
    return digits_of((path.relative_to(root).as_posix(), path.read_bytes()) for path in files)


@cache
def source_fingerprint() -> str:
    """Return the fingerprint of the app this process was loaded from, read once."""
    return fingerprint_of(ROOT, source_files(ROOT))


def digits_of(parts: Iterable[tuple[str, bytes]]) -> str:
    """Return 16 hex digits over named contents."""
    digest = hashlib.sha256()
    for label, content in parts:
        name = label.encode()
        digest.update(b"%d:%s%d:" % (len(name), name, len(content)) + content)
    return digest.hexdigest()[:16]
