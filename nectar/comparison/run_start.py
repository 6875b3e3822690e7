"""Starting the runs of a comparison: each a process of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from nectar.comparison.live_processes import CHILD
from nectar.engines import processes
from nectar.engines.cores import GRANTED, available_cores

#: seconds that a run has for ending in order
GRACE = 20.0


class Started(Protocol):
    """A run's process, as `subprocess.Popen` has it."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """Return its exit code once it has ended."""

    def send_signal(self, sig: int, /) -> None:
        """Send it a signal if it is there."""


class RunStarter(ExitStack):
    """Starts runs on this machine; use as a context manager."""

    #: whether a record that broke off goes on where it was
    continues = True

    def jobs(self, cores: int, gpu: bool) -> int:
        """Return how many runs of ``cores`` cores this machine carries at a time; on a GPU one."""
        return 1 if gpu else max(1, available_cores() // cores)

    def start(
        self, words: Sequence[str], log: Path, *, threads: int, cores: int, gpu: bool = False
    ) -> Started:
        """Start ``nectar run`` with ``words``.

        Parameters
        ----------
        cores : int
            What it may share out among processes of its own.
        """
        return start_alone(words, log, threads=threads, cores=cores)


def start_alone(
    words: Sequence[str], log: Path, *, threads: int, cores: int
) -> subprocess.Popen[bytes]:
    """Start ``nectar run`` in a process that ends with this one."""
    own = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    environment = os.environ | processes.import_path() | own | {GRANTED: str(cores)}
    command = processes.module_command(CHILD, "run", *words)
    with log.open("wb") as file:
        return processes.start(
            command, environment=environment, output=file, errors=subprocess.STDOUT
        )
