"""A run's directory for readers: its files, their contents, and whether a run still writes it.

Nothing in this module changes a record or needs torch, so that runs are listed at once.
"""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.config.sources import SCHEMA
from common.errors import FederationError, one_line
from common.storage.files import parse_json, read_file

Line = dict[str, Any]
"""A round's line of metrics.jsonl."""

PROVENANCE = "provenance.json"

LATEST = "latest"
"""The record that was started last."""

REPORT = "report.html"
"""What a run's report is called in its record."""

AUDIT = "audit-images.json"
"""What `nectar audit images` found; there only where it was asked."""

ALONE = "alone"
"""In a record's provenance: whether no other run was in progress, so that its timings are undisturbed."""

COMPLETED = "completed"
"""The outcome of a run that went to its last round."""

#: held by the process that writes the record; the file next to it names that process
LOCK, WRITER = ".writer.lock", ".writer.json"

BEGUN = ".begun-"
"""The prefix of a record's name until its first files are complete."""

#: seconds for which a record that is being made and has no writer's note is not taken for left behind
_YOUNG = 60.0

#: bytes read of a note that others may have written: enough for a name
_LONGEST = 80


class RunDirectory:
    """The directory of one run.

    Parameters
    ----------
    directory : Path
        Where it is, or may be.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def id(self) -> str:
        """The directory's name, which also names the run to its devices."""
        return self.directory.name

    @property
    def metrics_path(self) -> Path:
        """The figures: a line a round."""
        return self.directory / "metrics.jsonl"

    @property
    def last(self) -> Path:
        """The checkpoint of the newest round."""
        return self.directory / "checkpoint" / "last.safetensors"

    @property
    def best(self) -> Path:
        """The checkpoint of the round with the best accuracy on the validation share."""
        return self.directory / "checkpoint" / "best.safetensors"

    @property
    def finite(self) -> Path:
        """The last checkpoint before one whose test loss was not finite; there only where a run came to that."""
        return self.directory / "checkpoint" / "finite.safetensors"

    @property
    def last_sets(self) -> Path:
        """The synthetic sets that the sites sent in the newest round, for methods that send images."""
        return self.directory / "synthetic" / "last.safetensors"

    @property
    def best_sets(self) -> Path:
        """Those of the round with the best accuracy on the validation share."""
        return self.directory / "synthetic" / "best.safetensors"

    def samples(self, server_round: int) -> Path:
        """Return the folder of pictures of what the sites sent in a round."""
        return self.directory / "samples" / f"round-{server_round:03d}"

    def is_there(self) -> bool:
        """Return whether this is a record, and no link to one."""
        return (self.directory / PROVENANCE).is_file() and not self.directory.is_symlink()

    def stated(self) -> dict[str, Any] | None:
        """Return what its provenance states now; None if that cannot be read, or is not a run's of this schema."""
        found = self.json(PROVENANCE)
        if found is None or found.get("schema") != SCHEMA:
            return None
        return found if isinstance(found.get("run-config"), dict) else None

    def other_schema(self) -> int | None:
        """Return the schema of a record of another release; None if it is this one's, or there is no record."""
        schema = (self.json(PROVENANCE) or {}).get("schema")
        return schema if type(schema) is int and schema != SCHEMA else None

    def why_not(self) -> str:
        """Return why this is not a readable record, and what to do; half a sentence."""
        if (schema := self.other_schema()) is not None:
            return (
                f"was written by another release of Nectar (its schema is {schema}, this one reads {SCHEMA}): read it "
                "with the release that wrote it"
            )
        return (
            f"is not a run's record (it has no readable {PROVENANCE}): give the directory that the run printed, its "
            "id, or latest"
        )

    def json(self, name: str) -> dict[str, Any] | None:
        """Return the table in the file ``name``; None if it has none that can be read."""
        try:
            content = parse_json(read_file(self.directory / name))
        except (OSError, ValueError, RecursionError):
            return None
        return content if isinstance(content, dict) else None

    def metrics(self) -> list[Line]:
        """Return the rounds' lines; a last one without its line end was cut short by a crash, and does not count.

        Raises
        ------
        FederationError
            If the file cannot be read, or a line is damaged: it is named.
        """
        path = self.metrics_path
        try:
            *texts, _ = read_file(path).split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise FederationError(f"{path} cannot be read ({error.strerror})") from None
        lines: list[Line] = []
        for number, text in enumerate(texts, 1):
            line = parse_line(text)
            if line is None:
                raise FederationError(
                    f"{path} is damaged at line {number}: restore a complete copy of the record"
                )
            lines.append(line)
        return lines

    def is_written(self) -> bool:
        """Return whether a process writes the record; yes where that cannot be known. Nothing is written for it."""
        try:
            lock = os.open(self.directory / LOCK, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            return not isinstance(error, FileNotFoundError)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(lock)
        return False

    def writer(self) -> str:
        """Return the process and the machine that wrote the record last, as far as that is known."""
        note = self.json(WRITER) or {}
        if not {"pid", "host"} <= note.keys():
            return "another process"
        pid, host = (one_line(str(note[key]))[:_LONGEST] for key in ("pid", "host"))
        return f"process {pid} on {host}"


def parse_line(text: bytes) -> Line | None:
    """Return a round's line; None if the text is not one."""
    try:
        found = parse_json(text)
    except (ValueError, RecursionError):
        return None
    known = isinstance(found, dict) and type(found.get("round")) is int and found["round"] >= 0
    return found if known else None


def has_diverged(line: Mapping[str, Any]) -> bool:
    """Return whether a round's test loss was not finite: null in the file, NaN or infinity in a checkpoint."""
    test = line.get("test")
    loss = test.get("loss") if isinstance(test, Mapping) else 0.0
    return not (isinstance(loss, int | float) and math.isfinite(loss))


def codes_of(provenance: Mapping[str, Any]) -> list[str]:
    """Return the fingerprints of the code that a run was computed by, in their order."""
    later = [time["code"] for time in provenance.get("continued", []) if "code" in time]
    return [str(provenance.get("code", "")), *later]


def sweep(output_dir: Path) -> None:
    """Delete what runs left that ended while they made their records."""
    for left in output_dir.glob(f"{BEGUN}*"):
        with suppress(OSError):
            young = time.time() - left.stat().st_mtime < _YOUNG and not (left / WRITER).exists()
            if not (young or left.is_symlink() or RunDirectory(left).is_written()):
                shutil.rmtree(left)
