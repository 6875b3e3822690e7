"""The process that carries out one run of a comparison, started, seen among others, and from within.

It is ``python -m nectar.comparison.run_process PARENT run [EXPERIMENT] [key=value ...]``: ``nectar run``, which does
not outlive the comparison.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import psutil

from common.learning.compute import gpu_alone, gpus
from nectar.engines import processes
from nectar.engines.cores import GRANTED, available_cores

_MODULE = "nectar.comparison.run_process"


class Started(Protocol):
    """A run's process, as `subprocess.Popen` has it."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """Return its exit code once it has ended."""

    def send_signal(self, sig: int, /) -> None:
        """Send it a signal if it has not ended."""


class LocalStarter(ExitStack):
    """Starts runs on this machine; use as a context manager."""

    continues = True

    def __init__(self) -> None:
        super().__init__()
        self._on_gpus: list[tuple[subprocess.Popen[bytes], int]] = []

    def jobs(self, cores: int, gpu: bool) -> int:
        """Return how many runs of ``cores`` cores this machine carries out at a time; on GPUs one each."""
        return len(gpus()) if gpu else max(1, available_cores() // cores)

    def start(
        self, words: Sequence[str], log: Path, *, threads: int, cores: int, gpu: bool = False
    ) -> subprocess.Popen[bytes]:
        """Start ``nectar run`` with ``words`` in a process that ends with this one, on the GPU that has least to do."""
        busy = self._on_gpus = [one for one in self._on_gpus if one[0].poll() is None]
        load = Counter(number for _, number in busy)
        number = min(range(max(1, len(gpus()) if gpu else 1)), key=load.__getitem__)
        own = gpu_alone("auto", number) if gpu else {}
        process = start_process(words, log, threads=threads, cores=cores, variables=own)
        if gpu:
            busy.append((process, number))
        return process


def start_process(
    words: Sequence[str],
    log: Path,
    *,
    threads: int,
    cores: int,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.Popen[bytes]:
    """Start ``nectar run`` in a process that ends with this one, with ``variables`` of its own."""
    own = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    environment = os.environ | processes.import_path() | own | {GRANTED: str(cores), **variables}
    command = processes.module_command(_MODULE, "run", *words)
    with log.open("wb") as file:
        return processes.start(
            command, environment=environment, output=file, errors=subprocess.STDOUT
        )


def command_lines() -> dict[int, tuple[str, ...]]:
    """Return the words of every living process by its number, this one excepted."""
    lines = {
        p.pid: tuple(filter(None, p.info["cmdline"] or ()))
        for p in psutil.process_iter(["cmdline"])
    }
    return {pid: line for pid, line in lines.items() if line and pid != os.getpid()}


def is_run(line: Sequence[str]) -> bool:
    """Return whether a process with these words carries out a run."""
    programs, commands = ("nectar", "cli.py", "nectar.cli"), ("run", "simulate")
    return _MODULE in line or any(
        Path(program).name in programs and command in commands
        for program, command in pairwise(line)
    )


def main(words: list[str]) -> int:
    """Be that process: carry out ``words`` after the first one, the parent's number; return the exit code."""
    parent, *words = words
    processes.end_with(int(parent))  # at once: a record survives that at any moment
    from nectar import cli

    processes.listen()
    return cli.main(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
