"""Waiting times around the rounds of ``nectar simulate``, compared with the equivalent plain ``flwr run``.

An entry of ``python -m benchmarks``. A pair is two fresh commands, each with its own Ray: the
seconds from the command to round 0, and from the last round's line to the command's end. ``python -m
benchmarks.first_command`` prints the seconds of each phase of ours.

Flower's own SuperLink would stay behind it: it is ended when the clock has stopped.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

import psutil

from benchmarks.federation import free_port
from benchmarks.measure import LEAST_PAIRS, Claim, Row
from nectar.engines.processes import end, living

_SETTINGS = ["method=fedavg", "rounds=2"]

#: the first line with each of these begins a phase, in this order
_MARKS = {
    "the settings": re.compile(r"^method="),
    "Ray is up": re.compile(r"FutureWarning: Tip: In future versions of Ray"),
    "round 0": re.compile(r"round 0/"),
    "last round": re.compile(r"done: "),
}
_END = "the end"
_AT_ONCE = ((signal.SIGKILL, 20.0),)

Times = dict[str, float]


def rows(pairs: int) -> Iterator[Row]:
    """Measure both commands, and yield what is waited for before the first round and after the last."""
    _ = ours(), _persistent_plain()
    both = [_pair(first=(ours, plain)[pair % 2]) for pair in range(pairs)]
    for name, waited, claim in (
        ("command to round 0, plain flwr first", before_rounds, Claim(at_most=1.0)),
        ("last round to end, plain flwr first", behind_rounds, Claim(at_most=0.7)),
    ):
        seconds = [(waited(theirs), waited(own)) for theirs, own in both]
        yield Row(
            name,
            median(theirs for theirs, _ in seconds),
            median(own for _, own in seconds),
            tuple(claim.ratio(*pair) for pair in seconds),
            claim,
        )


def _pair(first: Callable[[], Times]) -> tuple[Times, Times]:
    """Run the plain command and ours, one of them first; return their times in that order."""
    own = ours() if first is ours else None
    theirs = _persistent_plain()
    return theirs, own or ours()


def _persistent_plain() -> Times:
    """Run the plain command, once more if it failed: Flower gives its SuperLink 15 s to start."""
    try:
        return plain()
    except RuntimeError:
        return plain()


def before_rounds(times: Times) -> float:
    """Return the seconds until round 0 was reported."""
    return times["round 0"]


def behind_rounds(times: Times) -> float:
    """Return the seconds from the last round to the command's end."""
    return times[_END] - times["last round"]


def ours() -> Times:
    """Run ``nectar simulate`` and return the seconds until the start of each phase."""
    with tempfile.TemporaryDirectory() as runs:
        words = [*_nectar(runs), "--verbose"]
        return _watch(words, os.environ)


def plain() -> Times:
    """Run the ``flwr run`` that it prints in a temporary home, and stop the SuperLink that Flower leaves running."""
    with tempfile.TemporaryDirectory(prefix="plain-", ignore_cleanup_errors=True) as folder:
        directory = Path(folder)
        words = _printed(directory)
        home = {
            "FLWR_HOME": str(directory / "flower"),
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_TMPDIR": str(directory),
        }
        try:
            return _watch(words, os.environ | home)
        finally:
            end(lambda: [p for p in living() if _works_for(p, folder)], _AT_ONCE)


def _works_for(process: psutil.Process, folder: str) -> bool:
    """Return whether a process was started with Flower's home below ``folder``, or names that."""
    with suppress(psutil.Error):
        return folder in process.environ().get("FLWR_HOME", "") or folder in " ".join(
            process.cmdline()
        )
    return False


def _nectar(runs: str) -> list[str]:
    return [sys.executable, "-m", "nectar", "simulate", *_SETTINGS, f"output-dir={runs}"]


def _printed(directory: Path) -> list[str]:
    """Return the plain command's words; the shell's own $PATH is this process's."""
    line = subprocess.run(
        [*_nectar(str(directory / "runs")), "--print"], check=True, capture_output=True, text=True
    ).stdout
    return shlex.split(line.replace('"$PATH"', shlex.quote(os.environ["PATH"])))


def _watch(words: Sequence[str], environment: Mapping[str, str]) -> Times:
    """Run a command and return the seconds until each phase; RuntimeError if it failed or reported no round."""
    begin, times, message = time.perf_counter(), dict[str, float](), list[str]()
    process = subprocess.Popen(
        words,
        env=dict(environment) | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        message.append(line)
        for name, mark in _MARKS.items():
            if mark.search(line):
                times.setdefault(name, time.perf_counter() - begin)
    if process.wait() or not {"round 0", "last round"} <= times.keys():
        raise RuntimeError(
            f"{shlex.join(words)} ended with {process.returncode}:\n{''.join(message)}"
        )
    return times | {_END: time.perf_counter() - begin}


def main() -> None:
    """Print the phases of ours: when each begins, the median of seven runs, and how long after the one before."""
    runs = [ours() for _ in range(LEAST_PAIRS)]
    passed = 0.0
    for name in (*_MARKS, _END):
        reached = median(times[name] for times in runs)
        print(f"{name:<20} {reached:6.1f} s  (+{reached - passed:.1f})")
        passed = reached


if __name__ == "__main__":
    main()
