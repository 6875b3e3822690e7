"""Many runs in a row, one in five of them failing: each ends with its exit code, and nothing of it is left behind.

Half an hour on two cores, so with `pytest tests/deployment/test_repeated_runs.py -m faults` only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_federation import FaultFederation
from small import SMALL

pytestmark = [
    pytest.mark.extended,
    pytest.mark.faults,
    pytest.mark.promise(
        "A fault at any step",
        "Twenty `nectar submit` in a row, one in five failing, leave nothing behind",
    ),
]

SUBMITTED = 20
#: every fifth run diverges in its first round
DIVERGES = "feddm.image_lr=1e30"


def processes_of(directory: Path) -> dict[int, str]:
    """Return the processes that name ``directory`` among their words or in their environment."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes()
            about = words + (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(directory).encode() in about:
            found[int(entry.name)] = words.replace(b"\0", b" ").decode(errors="replace")
    return found


def test_twenty_runs_submitted_in_a_row(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    nodes = {f"partition-{i}": f"partition-id={i} num-partitions=3" for i in range(3)}
    with FaultFederation(tmp_path, nodes) as federation:
        federation.start(*nodes)
        resting: set[int] = set()
        seconds = []
        for i in range(SUBMITTED):
            words = ["rounds=1", f"seed={i}", *SMALL.split(), *([DIVERGES] * (i % 5 == 4))]
            begun = time.monotonic()
            process = federation.submit_words(f"submit-{i}", f"output-dir={tmp_path}/runs", *words)
            assert process.wait(600) == (1 if i % 5 == 4 else 0), federation.log(f"submit-{i}")
            seconds.append(time.monotonic() - begun)
            time.sleep(5)  # the ServerApp's process ends behind the run's outcome
            left = processes_of(tmp_path)
            resting = resting or set(left)
            assert set(left) <= resting, {p: left[p] for p in set(left) - resting}
        assert not [log for log in federation.running.values() if log.poll() is not None]
        assert len(list((tmp_path / "runs").iterdir())) == SUBMITTED
        slowest = f"{min(seconds):.0f} to {max(seconds):.0f} s"
        record_property("row", f"| nectar submit | {SUBMITTED} | {slowest} |")
