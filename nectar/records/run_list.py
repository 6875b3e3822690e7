"""The records below an output directory: listed, looked up by a run's identity, and removed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import ConfigError, NectarError
from nectar.records.record import RunRecord, record_at
from server_app.run_directory import LATEST, PROVENANCE, RunDirectory
from server_app.run_directory import sweep as sweep_begun

if TYPE_CHECKING:
    from nectar.records.identity import Identity

#: what a record is called from the moment it goes until its last file is gone
_GOING = ".removed-"


def runs_below(directory: Path) -> list[RunRecord]:
    """Return the records in ``directory``, newest first; links are skipped."""
    found = [
        run for name in _names(directory) if (run := RunRecord.find(directory / name)) is not None
    ]
    oldest = datetime.min.replace(tzinfo=UTC)
    return sorted(found, key=lambda run: (run.started or oldest, run.id), reverse=True)


def other_schemas_below(directory: Path) -> list[RunDirectory]:
    """Return the records in ``directory`` that were written by another release and cannot be read."""
    found = (RunDirectory(directory / name) for name in _names(directory))
    return [record for record in found if record.other_schema() is not None]


def chosen(output: Path, names: Sequence[str]) -> list[RunRecord]:
    """Return the records that are named for removal, all of which may go.

    Parameters
    ----------
    names : sequence of str
        Ids of records in it, their directories, or ``latest``.

    Raises
    ------
    ConfigError
        If one is not a record in the output directory itself, is a link, is named twice, or is being written.
    """
    found: dict[str, RunRecord] = {}
    for name in names:
        run = _removable(output, name)
        if run.id in found:
            raise ConfigError(f"{run.id} is named twice: name each record once.")
        found[run.id] = run
    return list(found.values())


def remove(run: RunRecord) -> None:
    """Remove a record: it is complete or gone, even if the deletion of its files is interrupted.

    Raises
    ------
    NectarError
        If it cannot be removed, or a process is writing it.
    """
    _refuse_written(run)
    going = run.directory.with_name(f"{_GOING}{run.id}")
    try:
        run.directory.rename(going)
        shutil.rmtree(going)  # follows no link
    except OSError as error:
        raise NectarError(f"{run.directory} cannot be removed ({error.strerror}).") from None


def sweep(output: Path) -> None:
    """Delete what removals, and runs that made their records, left when they were killed."""
    sweep_begun(output)
    for left in output.glob(f"{_GOING}*"):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)


def _removable(output: Path, name: str) -> RunRecord:
    place = record_at(name, str(output)) if name == LATEST else Path(name).expanduser()
    directory = place if place.is_absolute() else output / place
    if directory.parent.resolve() != output.resolve() or directory.name.startswith("."):
        raise ConfigError(
            f"{name} is not in {output}: give a record's id, and its folder as output-dir=DIRECTORY."
        )
    directory = output / directory.name
    run = None if directory.is_symlink() else RunRecord.find(directory)
    if run is None:
        raise ConfigError(f"{name} is not a run's record in {output}: `nectar runs` lists those.")
    _refuse_written(run)
    return run


def _refuse_written(run: RunRecord) -> None:
    if run.is_written():
        raise ConfigError(
            f"{run.id} is being written by {run.writer()}, a run in progress: wait until it ends, or stop it."
        )


def _names(directory: Path) -> list[str]:
    """Return the names of the folders that may be records."""
    try:
        folders = [entry for entry in os.scandir(directory) if entry.is_dir(follow_symlinks=False)]
    except OSError:  # it does not exist yet
        return []
    return sorted(entry.name for entry in folders if not entry.name.startswith("."))


class Archive:
    """The records of one output directory; a provenance is read again only once it has changed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[Path, tuple[int, dict[str, Any] | None]] = {}

    def completed(self, identity: Identity, *, alone: bool = False) -> RunRecord | None:
        """Return the completed record of a run, one that ran alone first; with ``alone`` no other."""
        found = [run for run in self._of(identity) if run.completed and (run.alone or not alone)]
        return min(found, key=lambda run: (not run.alone, run.id), default=None)

    def all_completed(self) -> list[RunRecord]:
        """Return every record of a run that went to its last round."""
        return [run for run in self._read() if run.completed]

    def unfinished(self, identity: Identity) -> RunRecord | None:
        """Return the record of a run that broke off, and that no process writes: the one that got furthest."""
        found = [run for run in self._of(identity) if not run.completed]
        found = [run for run in found if not run.is_written()]
        return max(found, key=lambda run: (run.done, run.id), default=None)

    def _of(self, identity: Identity) -> list[RunRecord]:
        # One that was made of another record is not the run of its settings alone.
        own = (run for run in self._read() if not run.provenance["run-config"].get("resume"))
        return [run for run in own if not identity.why_not(run.provenance)]

    def _read(self) -> Iterator[RunRecord]:
        known: dict[Path, tuple[int, dict[str, Any] | None]] = {}
        for path in sorted(self._directory.glob(f"[!.]*/{PROVENANCE}")):
            try:
                changed = path.stat().st_mtime_ns
            except OSError:  # removed meanwhile
                continue
            before = self._known.get(path)
            if before is None or before[0] != changed:
                before = changed, RunDirectory(path.parent).stated()
            known[path] = before
        self._known = known
        for path, (_, stated) in known.items():
            if stated is not None:
                yield RunRecord(path.parent, provenance=stated)
