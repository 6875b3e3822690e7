"""Runs that die at one of their writes, as by SIGKILL: called with a JSON list of jobs, it forks for each.

A job is {"config": run config, "dies": n, "torn": bool}: the process ends at the n-th step on the way to the disk
(a file flushed, a file or folder renamed into place), before it is taken; with ``torn`` half of the file that was
to be flushed is there. Printed is, for each job, what it died at; nothing for one that ran to its end.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch


class Mortal:
    """Counts the steps to the disk and ends the process at one of them."""

    def __init__(self, dies: int, torn: bool, said: int) -> None:
        self.left = dies
        self.torn = torn
        self.said = said
        self.fsync, self.replace, self.rename = os.fsync, Path.replace, Path.rename

    def step(self, what: str) -> None:
        """Take a step, or die."""
        self.left -= 1
        if not self.left:
            os.write(self.said, what.encode())
            os._exit(137)

    def install(self) -> None:
        """Stand between the program and the disk."""

        def fsync(file: int) -> None:
            path = Path(f"/proc/self/fd/{file}").resolve()
            if self.torn and self.left == 1:
                os.truncate(path, path.stat().st_size // 2)
            self.step(f"flush {path.name}")
            self.fsync(file)

        def replace(path: Path, target: Any) -> Path:
            self.step(f"rename to {Path(target).name}")
            return self.replace(path, target)

        def rename(path: Path, target: Any) -> Path:
            self.step(f"rename to {Path(target).name}")
            return self.rename(path, target)

        os.fsync = fsync
        Path.replace, Path.rename = replace, rename  # type: ignore[method-assign, assignment]


def main(jobs: list[dict[str, Any]]) -> None:
    """Carry out ``jobs`` one after the other."""
    torch.set_num_threads(1)
    from federation import run

    for job in jobs:
        here, there = os.pipe()
        child = os.fork()
        if not child:
            try:
                Mortal(job["dies"], job["torn"], there).install()
                run(job["config"])
            finally:
                os._exit(0)
        os.close(there)
        os.waitpid(child, 0)
        print(json.dumps(os.read(here, 1000).decode()), flush=True)
        os.close(here)


if __name__ == "__main__":
    main(json.load(sys.stdin))
