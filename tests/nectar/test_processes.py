"""A child that dies with its parent and is ended step by step: what every farm of processes is made of."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest
from waiting import until

from nectar.engines import processes

#: a parent that starts a child, tells its number, and waits
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(__import__("os").getpid())], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""

ENDS_WITH = """
import signal, sys, time
from nectar.engines import processes
{before}
processes.end_with(int(sys.argv[1]){signal})
print(flush=True)
while True:
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        pass
"""


def lives(pid: int) -> bool:
    return bool(processes.living(lambda number: number == pid))


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("before", "number"),
    [
        pytest.param("", "", id="killed by the system"),
        pytest.param("sys.platform = 'other'", "", id="by a look at its parent"),
        pytest.param("processes.listen(1)", ", signal.SIGTERM", id="asked, then killed"),
    ],
)
def test_a_child_dies_with_its_parent_however_that_ends(before: str, number: str) -> None:
    child_code = ENDS_WITH.format(before=before, signal=number)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, child_code],
        env=os.environ | processes.import_path(),
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert lives(child)
        parent.kill()
    until(lambda: not lives(child))


def test_who_listens_hears_the_first_signal_and_is_left_to_its_clean_up() -> None:
    code = """
import signal
from nectar.engines import processes
processes.listen()
for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
    try:
        signal.raise_signal(number)
    except KeyboardInterrupt:
        print(number.name)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | processes.import_path(),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "SIGTERM\n", "")


def test_one_whose_parent_is_gone_already_ends_at_once() -> None:
    code = "import sys; from nectar.engines import processes; processes.end_with(1); print('alive')"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | processes.import_path(), capture_output=True
    )
    assert (done.returncode, done.stdout) == (1, b"")


def test_who_does_not_listen_is_killed_and_who_appears_meanwhile_is_ended_too() -> None:
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    sleeps = "print(flush=True); time.sleep(600)"
    one, late = (
        processes.start([sys.executable, "-c", code + sleeps], output=subprocess.PIPE)
        for code in (stubborn, "import time; ")
    )
    for child in (one, late):
        assert child.stdout is not None
        child.stdout.readline()
    looks: list[int] = []

    def living() -> list[subprocess.Popen[bytes]]:
        looks.append(len(looks))
        there = [one, late] if len(looks) > 3 else [one]
        return [child for child in there if child.poll() is None]

    steps = ((signal.SIGTERM, 0.3), (signal.SIGKILL, 60.0))
    assert processes.end(living, steps) == []
    assert (one.returncode, late.returncode) == (-signal.SIGKILL, -signal.SIGTERM)
    for child in (one, late):
        assert child.stdout is not None
        child.stdout.close()


def test_who_is_there_all_the_same_is_told() -> None:
    class Eternal(psutil.Process):
        def send_signal(self, sig: int) -> None:
            raise psutil.AccessDenied

    eternal = Eternal()
    assert processes.end(lambda: [eternal], ((signal.SIGKILL, 0.0),)) == [eternal]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (3, "it ended with exit code 3"),
        (-9, "it was killed by SIGKILL, probably for lack of memory"),
        (-15, "it was killed by SIGTERM"),
        (-63, "it was killed by signal 63"),
    ],
)
def test_how_a_child_ended_is_said_in_a_clause(code: int, said: str) -> None:
    assert processes.how_it_ended(code) == said
