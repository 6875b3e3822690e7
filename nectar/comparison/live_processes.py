"""Which runs are being carried out on this machine now: read off the processes' command lines."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path

_PROC = Path("/proc")

#: the module that a comparison starts its runs with
CHILD = "nectar.comparison.run_process"

_PROGRAMS = ("nectar", "cli.py", "nectar.cli")
_RUNNING = ("run", "simulate")


def command_lines() -> dict[int, tuple[str, ...]]:
    """Return the words of every living process by its number, this one excepted; none without /proc."""
    found: dict[int, tuple[str, ...]] = {}
    for entry in _PROC.glob("[0-9]*"):
        try:
            text = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:  # gone meanwhile, or another user's
            continue
        if text and int(entry.name) != os.getpid():
            found[int(entry.name)] = tuple(text.rstrip("\0").split("\0"))
    return found


def others(own: Collection[int]) -> bool:
    """Tell whether a run goes on that is none of the processes ``own``."""
    return any(is_run(line) for pid, line in command_lines().items() if pid not in own)


def is_run(line: Sequence[str]) -> bool:
    """Tell whether a process with these words carries out a run."""
    if CHILD in line:
        return True
    return any(Path(a).name in _PROGRAMS and b in _RUNNING for a, b in pairwise(line))
