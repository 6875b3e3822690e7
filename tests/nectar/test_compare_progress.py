"""The line a minute: figures by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from comparing import options_of
from federation import run
from small import SMALL, Small

from nectar.comparison import scheduler as scheduling
from nectar.comparison.comparison import Comparison
from nectar.comparison.request import parse
from nectar.comparison.scheduler import RunningJob, progress


def test_it_says_who_is_at_work_how_far_and_until_when() -> None:
    """In 60 s a run and a half were made, and four are left: 160 s; what was done before counts nothing."""
    runs = [RunningJob("a, seed 0", 0, 10, 20), RunningJob("b, seed 0", 5, 5, 10)]
    message = progress(runs, "4 of 9 runs done", ended=1, waiting=3, seconds=60)
    assert message == (
        "Running: a, seed 0 (round 10 of 20); b, seed 0 (round 5 of 10). 4 of 9 runs done, about 2 min 40 s more."
    )


def test_before_a_round_was_done_it_does_not_guess() -> None:
    runs = [RunningJob(f"a, seed {n}", 0, 0, 3) for n in range(6)]
    message = progress(runs, "0 of 6 runs done", ended=0, waiting=0, seconds=60)
    assert message.endswith("a, seed 3 (round 0 of 3); 2 more. 0 of 6 runs done.")


@pytest.mark.extended
def test_a_comparison_says_it(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's process waits until the line was said; its record has one round of two."""
    record, gate = run(small(method="fedavg", rounds=1)), tmp_path / "gate"

    def start(starter: Any, task: Any, resume: Any, log: Path, share: int, timed: bool) -> Any:
        log.write_text("nectar: over\n")
        log.with_suffix(".record").write_text(f"{record.directory}\n")
        waits = "import sys, time; from pathlib import Path\n"
        waits += "while not Path(sys.argv[1]).exists(): time.sleep(0.01)\nsys.exit(1)"
        return subprocess.Popen([sys.executable, "-c", waits, str(gate)])

    message: list[str] = []

    def say(line: str) -> None:
        message.append(line)
        if line.startswith("Running"):
            gate.touch()

    monkeypatch.setattr(scheduling, "_start", start)
    monkeypatch.setattr(scheduling, "_EVERY", 0.0)
    words = ["fedavg", "rounds=2", "--seeds=1", f"output-dir={tmp_path / 'runs'}", *SMALL.split()]
    Comparison(parse(options_of(words)), say).carry_out()
    assert message[1].startswith("Running: fedavg, seed 0 (round 1 of 2). 0 of 1 runs done")
