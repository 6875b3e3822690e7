"""The process of one run of a comparison, both its start and its main function.

It is ``python -m nectar.comparison.run_process PARENT run [EXPERIMENT] [key=value ...]``: ``nectar run``, which does
not outlive the comparison.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from common.learning.compute import gpu_alone, gpus
from nectar.engines import processes
from nectar.engines.alone import TIMED
from nectar.engines.cores import GRANTED, available_cores

_MODULE = "nectar.comparison.run_process"


def runs_at_a_time(cores: int, gpu: bool) -> int:
    """Return how many runs of ``cores`` cores fit on this machine; on GPUs one each."""
    return len(gpus()) if gpu else max(1, available_cores() // cores)


class RunStarter:
    """Starts runs on this machine, each on the GPU with the fewest runs."""

    def __init__(self) -> None:
        self._on_gpus: list[tuple[subprocess.Popen[bytes], int]] = []

    def start(
        self,
        words: Sequence[str],
        log: Path,
        *,
        threads: int,
        cores: int,
        gpu: bool = False,
        timed: bool = False,
    ) -> subprocess.Popen[bytes]:
        """Start ``nectar run WORD...`` in a process that ends with this thread, if ``timed`` while no other runs."""
        busy = self._on_gpus = [one for one in self._on_gpus if one[0].poll() is None]
        load = Counter(number for _, number in busy)
        number = min(range(max(1, len(gpus()) if gpu else 1)), key=load.__getitem__)
        own = (gpu_alone("auto", number) if gpu else {}) | ({TIMED: "1"} if timed else {})
        threads_each = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        environment = os.environ | processes.import_path() | threads_each
        command = processes.module_command(_MODULE, "run", *words)
        with log.open("wb") as file:
            process = processes.start(
                command,
                environment=environment | {GRANTED: str(cores), **own},
                output=file,
                errors=subprocess.STDOUT,
            )
        if gpu:
            busy.append((process, number))
        return process


def main(words: list[str]) -> int:
    """Run the words after the first one, which is the parent's process id; return the exit code."""
    parent, *words = words
    processes.end_with(int(parent))  # at once: a record survives that at any moment
    from nectar import cli

    processes.listen()
    return cli.main(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
