"""The records below an output directory: what each is at a glance, and letting some go."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common.errors import ConfigError, NectarError
from common.storage.files import read_file
from nectar.records.named_record import LATEST, record_at
from server_app.metrics_file import parse_line
from server_app.record import RunDirectory
from server_app.writer import Writer
from server_app.writer import sweep as sweep_begun

OUTCOMES = ("completed", "failed", "interrupted", "running", "killed")
"""How a run stands; ``killed`` is one whose record says ``running`` and that no process writes."""

#: what a record is called from the moment it goes until its last file is gone
_GOING = ".removed-"


@dataclass(frozen=True)
class ListedRun:
    """A record at a glance.

    Parameters
    ----------
    done : int
        Rounds on record.
    accuracy : float or None
        That of the last round, on the server's test set or else at the sites.
    outcome : str
        One of OUTCOMES.
    size : int
        Bytes of its files.
    """

    directory: Path
    method: str
    dataset: str
    seed: int | None
    rounds: int | None
    done: int
    accuracy: float | None
    outcome: str
    size: int
    started: datetime | None

    @property
    def id(self) -> str:
        """The record's name."""
        return self.directory.name

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON can state it."""
        return {
            "id": self.id,
            "directory": str(self.directory),
            "method": self.method,
            "dataset": self.dataset,
            "seed": self.seed,
            "rounds": self.rounds,
            "done": self.done,
            "accuracy": self.accuracy,
            "outcome": self.outcome,
            "bytes": self.size,
            "started": None if self.started is None else self.started.isoformat(),
        }


def runs_below(directory: Path) -> list[ListedRun]:
    """Return the records that lie in ``directory``, newest first; links are passed over."""
    found = [run for name in _names(directory) if (run := read_run(directory / name)) is not None]
    oldest = datetime.min.replace(tzinfo=UTC)
    return sorted(found, key=lambda run: (run.started or oldest, run.id), reverse=True)


def run_called(directory: Path, name: str) -> ListedRun | None:
    """Return the record in ``directory`` that has this id; None if there is none."""
    return read_run(directory / name) if name in _names(directory) else None


def read_run(directory: Path) -> ListedRun | None:
    """Return the record in ``directory``; None if it is none."""
    provenance = RunDirectory(directory).stated()
    if provenance is None:
        return None
    asked = provenance["run-config"]
    lines = list(_lines(directory))
    asked_for = _whole(asked.get("rounds"))
    done = max((line["round"] for line in lines), default=0)
    return ListedRun(
        directory,
        str(asked.get("method", "")),
        str(asked.get("dataset", "")),
        _whole(asked.get("seed")),
        None if asked_for is None else max(asked_for, done),  # it may have been told to go on
        done,
        _accuracy(lines),
        _outcome(directory, str(provenance.get("outcome", ""))),
        sum(_sizes(directory)),
        _moment(provenance.get("started")),
    )


def chosen(output: Path, names: Sequence[str]) -> list[ListedRun]:
    """Return the records that are named for removal, all of which may go.

    Parameters
    ----------
    names : sequence of str
        Ids of records in it, their directories, or ``latest``.

    Raises
    ------
    ConfigError
        If one is no record that lies in the output directory itself, is a link, is named twice, or is being written.
    """
    found: dict[str, ListedRun] = {}
    for name in names:
        run = _removable(output, name)
        if run.id in found:
            raise ConfigError(f"{run.id} is named twice: name each record once.")
        found[run.id] = run
    return list(found.values())


def remove(run: ListedRun) -> None:
    """Let a record go: it is there whole, or not at all, whatever happens while its files are deleted.

    Raises
    ------
    NectarError
        If it cannot be removed, or a process has begun to write it.
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


def _removable(output: Path, name: str) -> ListedRun:
    place = record_at(name, str(output)) if name == LATEST else Path(name).expanduser()
    directory = place if place.is_absolute() else output / place
    if directory.parent.resolve() != output.resolve() or directory.name.startswith("."):
        raise ConfigError(
            f"{name} does not lie in {output}: give a record's id, and its folder as output-dir=DIRECTORY."
        )
    directory = output / directory.name
    run = None if directory.is_symlink() else read_run(directory)
    if run is None:
        raise ConfigError(f"{name} is not a run's record in {output}: `nectar runs` lists those.")
    _refuse_written(run)
    return run


def _refuse_written(run: ListedRun) -> None:
    writer = Writer(run.directory)
    if writer.is_at_work():
        raise ConfigError(
            f"{run.id} is being written by {writer.who()}, a run that still goes on: wait for its end, or end it."
        )


def _names(directory: Path) -> list[str]:
    """Return the names of the folders that may be records."""
    try:
        return sorted(entry.name for entry in os.scandir(directory) if _is_own(entry))
    except OSError:  # there is none yet
        return []


def _is_own(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")


def _lines(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of metrics.jsonl that can be read: a glance says what is there."""
    try:
        texts = read_file(directory / "metrics.jsonl").splitlines()
    except OSError:
        return
    yield from filter(None, map(parse_line, texts))


def _accuracy(lines: Sequence[dict[str, Any]]) -> float | None:
    figures = (lines[-1].get("test") or lines[-1].get("sites")) if lines else None
    value = figures.get("accuracy") if isinstance(figures, dict) else None
    return float(value) if isinstance(value, int | float) else None


def _outcome(directory: Path, said: str) -> str:
    kind = said.partition(":")[0]
    if kind != "running":
        return kind if kind in OUTCOMES else "failed"
    return "running" if Writer(directory).is_at_work() else "killed"


def _sizes(directory: Path) -> Iterator[int]:
    for folder, _, files in os.walk(directory):
        for name in files:
            try:
                yield Path(folder, name).lstat().st_size
            except OSError:  # gone meanwhile
                continue


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _moment(text: Any) -> datetime | None:
    try:
        return datetime.strptime(str(text), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None
