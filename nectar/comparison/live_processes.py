"""Which runs are being carried out on this machine now: read off the processes' command lines."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path

import psutil

#: the module that a comparison starts its runs with
CHILD = "nectar.comparison.run_process"

_PROGRAMS = ("nectar", "cli.py", "nectar.cli")
_RUNNING = ("run", "simulate")


def command_lines() -> dict[int, tuple[str, ...]]:
    """Return the words of every living process by its number, this one excepted."""
    lines = {p.pid: tuple(filter(None, p.info["cmdline"] or ())) for p in _processes()}
    return {pid: line for pid, line in lines.items() if line and pid != os.getpid()}


def _processes() -> list[psutil.Process]:
    return list(psutil.process_iter(["cmdline"]))


def others(own: Collection[int]) -> bool:
    """Tell whether a run goes on that is none of the processes ``own``."""
    return any(is_run(line) for pid, line in command_lines().items() if pid not in own)


def is_run(line: Sequence[str]) -> bool:
    """Tell whether a process with these words carries out a run."""
    if CHILD in line:
        return True
    return any(Path(a).name in _PROGRAMS and b in _RUNNING for a, b in pairwise(line))
