"""The site's own append-only log of what left it, at a place that no server has a word in."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

LOG = "released.jsonl"
"""The log's name in the state directory."""

Line = Mapping[str, str | int | float]


class ReleaseLog:
    """Lines about what left, each written whole, before it leaves.

    Parameters
    ----------
    directory : Path
        The site's state directory; a simulated site's is its run's record.
    about : mapping
        What every line says: the run's number at the SuperLink, the record, the site. A server has a word in the first
        two, so that they are fields of a line and no part of a path.
    """

    def __init__(self, directory: Path, about: Line) -> None:
        self._directory = directory
        self._path = os.path.join(directory, LOG)  # noqa: PTH118 - made for each reply
        self._about = about

    def append(self, line: Line) -> None:
        """Add a line with the time; OSError if it cannot be written, and then nothing may leave."""
        now = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        content = json.dumps({**now, **self._about, **line}) + "\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        try:
            file = os.open(self._path, flags, 0o600)
        except (FileNotFoundError, NotADirectoryError):  # the latter is told by mkdir, in its words
            self._directory.mkdir(parents=True, exist_ok=True)
            file = os.open(self._path, flags, 0o600)
        try:
            os.write(
                file, content.encode()
            )  # at once, since other processes of the site append as well
        finally:
            os.close(file)


def payload_line(
    server_round: int,
    phase: str,
    kind: str,
    arrays: Sequence[np.ndarray[Any, Any]],
    figures: Sequence[str],
) -> Line:
    """Say which payload left: in which round and phase, its kind and bytes, and the names of the figures beside it."""
    return {
        "round": server_round,
        "phase": phase,
        "kind": kind,
        "array-bytes": sum(array.nbytes for array in arrays),
        "figures": " ".join(sorted(figures)),
    }


def refusal_line(server_round: int, phase: str, reason: str) -> Line:
    """Say which sentence left where nothing else did."""
    return {"round": server_round, "phase": phase, "kind": "error", "reason": reason}
