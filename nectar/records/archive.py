"""The records below an output directory, looked up by a run's identity."""

from __future__ import annotations

from pathlib import Path

from common.storage.files import read_file
from nectar.records.identity import Identity
from server_app.record import PROVENANCE, KnownRun, Record, known_run


class Archive:
    """The records of one output directory; a provenance is read again only once it has changed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[Path, tuple[int, KnownRun]] = {}

    def completed(self, identity: Identity, *, alone: bool = False) -> KnownRun | None:
        """Return the completed record of a run, one that ran alone first; with ``alone`` no other."""
        found = [entry for entry in self._of(identity) if entry.completed]
        found = [entry for entry in found if entry.alone or not alone]
        return min(found, key=lambda e: (not e.alone, e.directory.name), default=None)

    def all_completed(self) -> list[KnownRun]:
        """Return every record of a run that went to its last round."""
        self._read()
        return [entry for _, entry in self._known.values() if entry.completed]

    def unfinished(self, identity: Identity) -> KnownRun | None:
        """Return the record of a run that broke off, and that no process writes: the one that got furthest."""
        found = [entry for entry in self._of(identity) if not entry.completed]
        found = [entry for entry in found if not Record(entry.directory).is_being_written()]
        return max(found, key=lambda e: (rounds_in(e.directory), e.directory.name), default=None)

    def _of(self, identity: Identity) -> list[KnownRun]:
        self._read()
        return [entry for _, entry in self._known.values() if identity.is_of(entry.provenance)]

    def _read(self) -> None:
        known: dict[Path, tuple[int, KnownRun]] = {}
        for path in sorted(self._directory.glob(f"[!.]*/{PROVENANCE}")):
            try:
                changed = path.stat().st_mtime_ns
            except OSError:  # removed meanwhile
                continue
            before = self._known.get(path)
            if before is not None and before[0] == changed:
                known[path] = before
            elif (entry := known_run(path.parent)) is not None:
                known[path] = (changed, entry)
        self._known = known


def rounds_in(directory: Path) -> int:
    """Return how many rounds of training are on record, the last line's; 0 without a record."""
    try:
        return max(0, read_file(directory / "metrics.jsonl").count(b"\n") - 1)
    except OSError:
        return 0
