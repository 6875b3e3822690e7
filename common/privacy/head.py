"""The head of a site's ledger: how long it is, and the checksum of its last line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Head:
    """How many lines a ledger has, and the last one's checksum; that of none is all zeros."""

    length: int = 0
    sha256: str = "0" * 64

    def __post_init__(self) -> None:
        if type(self.length) is not int or self.length < 0 or not _SHA256.fullmatch(self.sha256):
            raise ValueError(f"{self.length}, {str(self.sha256)[:80]!r} is not a head of a ledger")

    @classmethod
    def read(cls, recorded: object) -> Head:
        """Return what ``asdict`` gave; ValueError if it is none."""
        if not isinstance(recorded, Mapping) or set(recorded) != {"length", "sha256"}:
            raise ValueError(f"{str(recorded)[:80]} is not a head of a ledger")
        return cls(recorded["length"], str(recorded["sha256"]))
