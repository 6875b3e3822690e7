"""Where the seconds of a round go in a real federation: FedDM on digits, three SuperNodes on this machine.

``python -m benchmarks.deployment_round`` runs it with Flower's own SuperNode and its quick task poll, and with the
site's own program, and for comparison the same run in this process and on Ray. SIGTERM stops it and all its processes.

The times are read off the SuperNodes' logs as they are written
(to a hundredth of a second), off the record, and off the state that a site writes at the end of its work.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.federation import Federation, rounds_of
from nectar.cli import main as nectar

SITES = 3
ROUNDS = 8
SETTINGS = [f"federation.sites={SITES}"]

#: what starts a SuperNode
FLOWERS, OWN = ("flower-supernode",), ("nectar", "site")

_QUICK = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}

#: what a SuperNode logs, in the order of a message's life
_MARKS = {
    "asked": "Receiving: train",
    "has it": "Received successfully",
    "started": "Start `flwr-clientapp`",
    "sends": "Sending: train",
    "sent": "Sent successfully",
}
_ROUND = re.compile(r"ROUND (\d+)\]")

Times = dict[str, float]


@dataclass(frozen=True)
class Part:
    """A stretch of a round: what it is, and its seconds at the site that was last."""

    name: str
    seconds: float


class Watch(threading.Thread):
    """Notes when each site's log reached each mark of each round, and when the record had each round."""

    def __init__(self, directory: Path, sites: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self.marks: dict[tuple[str, int], Times] = {}
        self.recorded: list[float] = []
        self.over = threading.Event()
        self._directory = directory
        self._read = dict.fromkeys(sites, 0)
        self._round = dict.fromkeys(sites, 0)

    def run(self) -> None:
        """Look a hundred times a second."""
        while not self.over.wait(0.01):
            now = time.time()
            for site in self._read:
                self._look(site, now)
            while len(rounds_of(self._directory / "runs")) > len(self.recorded):
                self.recorded.append(now)

    def _look(self, site: str, now: float) -> None:
        path = self._directory / f"{site}.log"
        if not path.is_file() or path.stat().st_size == self._read[site]:
            return
        with path.open("rb") as log:
            log.seek(self._read[site])
            text = log.read().decode(errors="replace")
        complete = text[: text.rfind("\n") + 1]
        self._read[site] += len(complete.encode())
        for line in complete.splitlines():
            if found := _ROUND.search(line):
                self._round[site] = int(found[1])
            for mark, words in _MARKS.items():
                if words in line and self._round[site]:
                    self.marks.setdefault((site, self._round[site]), {}).setdefault(mark, now)


def main() -> int:
    """Measure and print."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores before the first run")
    for name, program in (("Flower's own program", FLOWERS), ("the site's own program", OWN)):
        print(
            f"\n{name}: seconds of a round by part, mean of rounds 2..{ROUNDS}, at the slowest site"
        )
        rounds = deployment(program)
        for i, part in enumerate(rounds[0]):
            values = [r[i].seconds for r in rounds]
            print(f"  {part.name:<58}{mean(values):>7.2f}   {min(values):.2f}..{max(values):.2f}")
        complete = [sum(part.seconds for part in parts) for parts in rounds]
        print(
            f"  {'the round':<58}{mean(complete):>7.2f}   {min(complete):.2f}..{max(complete):.2f}"
        )
    print()
    for name, seconds in (("in this process", _here()), ("on Ray", _on_ray())):
        print(f"{name}: {median(seconds):.2f} s a round ({min(seconds):.2f}..{max(seconds):.2f})")
    return 0


def deployment(program: Sequence[str]) -> list[list[Part]]:
    """Run the federation and return the parts of each round after the first."""
    sites = [f"partition-{i}" for i in range(SITES)]
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        config = {"rounds": ROUNDS, "output-dir": f"{folder}/runs", "set": " ".join(SETTINGS)}
        watch = Watch(directory, sites)
        ends: dict[tuple[str, int], float] = {}
        with Federation(directory, sites, environment=_QUICK, program=program) as federation:
            for i, site in enumerate(sites):
                federation.start_node(site, f"partition-id={i} num-partitions={SITES}")
            watch.start()
            run_id = federation.submit(config)
            while len(watch.recorded) <= ROUNDS:
                ends |= _written(directory)
                time.sleep(0.1)
            federation.wait(run_id)
            watch.over.set()
        lines = rounds_of(directory / "runs")
        return [
            _parts(watch, ends, lines[r], r, max(sites, key=lambda s: watch.marks[s, r]["sent"]))
            for r in range(2, ROUNDS + 1)
        ]


def _written(directory: Path) -> dict[tuple[str, int], float]:
    """Return when each site wrote its state of each round, which is the end of its work."""
    found = {}
    for path in directory.glob("state/*/*/*/*/[0-9]*.safetensors"):
        with contextlib.suppress(FileNotFoundError):
            found[path.parts[-4], int(path.stem)] = path.stat().st_mtime
    return found


def _parts(
    watch: Watch, ends: Mapping[tuple[str, int], float], line: Mapping[str, Any], r: int, site: str
) -> list[Part]:
    at, worked = watch.marks[site, r], float(line["seconds"]["by_site"][site])
    start, finished = watch.recorded[r - 1], ends[site, r]
    return [
        Part("the server sends; the SuperNode's look, every 3 s", at["asked"] - start),
        Part("the instruction's arrays", at["has it"] - at["asked"]),
        Part("SuperExec's look for a task", at["started"] - at["has it"]),
        Part("a new process: Python, Flower, torch, the data", finished - worked - at["started"]),
        Part("the work itself", worked),
        Part("reply to the SuperNode, its look every 0.5 s", at["sends"] - finished),
        Part("reply to the SuperLink", at["sent"] - at["sends"]),
        Part("our look (0.2 s), the server's training and record", watch.recorded[r] - at["sent"]),
    ]


def _here() -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        words = [*SETTINGS, f"rounds={ROUNDS}", f"output-dir={folder}/runs"]
        with contextlib.redirect_stderr(io.StringIO()):
            nectar(["run", *words])
        return _seconds(Path(folder, "runs"))


def _on_ray() -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        words = [*SETTINGS, f"rounds={ROUNDS}", f"output-dir={folder}/runs"]
        command = [sys.executable, "-m", "nectar.cli", "simulate", *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return _seconds(Path(folder, "runs"))


def _seconds(output: Path) -> list[float]:
    return [
        sum(v for k, v in line["seconds"].items() if k != "by_site")
        for line in rounds_of(output)[2:]
    ]


if __name__ == "__main__":
    sys.exit(main())
