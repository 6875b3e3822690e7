"""Ledgers whose processes are killed at random moments as they charge: none is unusable, and none counts too little.

Four in the ordinary suite; with `pytest tests/common/test_killed_ledgers.py -m faults -s` sixty, three kills each.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest

from common.privacy.events import Event
from common.privacy.ledger import Charge, Ledger

KILLS = 3

#: seconds from a process's start within which it is killed: before its first charge, or some twenty later
WITHIN = 0.1


def charge_on_and_on(directory: Path, first: int, told: int) -> None:
    """Charge for ever, each with a number of its own, and tell it when it is charged: from then on noise is drawn."""
    ledger = Ledger(directory)
    for number in itertools.count(first):
        ledger.append(charge(number), lambda before: None)
        os.write(told, f"{number}\n".encode())


def charge(number: int) -> Charge:
    words = ("2026-01-01T00:00:00Z", "north", "a-run", number, "train", "fedavg", "/data")
    return Charge(*words, (Event("dp-sgd", 1.1, 0.05, 30),))


def killed_at_it(directory: Path, first: int, moment: float) -> list[int]:
    """Start a process that charges, kill it at a moment, and return the numbers that it told."""
    read, write = os.pipe()
    process = multiprocessing.get_context("fork").Process(
        target=charge_on_and_on, args=(directory, first, write)
    )
    process.start()
    os.close(write)
    with os.fdopen(read, "rb") as told:
        time.sleep(moment)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join(60)
        assert process.exitcode == -signal.SIGKILL, "it had not stopped by itself"
        return [int(line) for line in told.read().split()]


@pytest.mark.extended
@pytest.mark.parametrize(
    "ledgers", [4, pytest.param(60, marks=[pytest.mark.extended, pytest.mark.faults])]
)
def test_ledgers_killed_while_they_charge_count_all_that_was_told(
    tmp_path: Path, ledgers: int
) -> None:
    draw, told, more = random.Random(), 0, 0
    for each in range(ledgers):
        directory, acknowledged = tmp_path / str(each), list[int]()
        for kill in range(KILLS):
            acknowledged += killed_at_it(directory, 10**6 * kill, draw.uniform(0, WITHIN))
            counted = [one.round for one in Ledger(directory).read().charges]
            unheard = [n for n in counted if n not in set(acknowledged)]
            assert [n for n in counted if n not in unheard] == acknowledged
            assert len(unheard) <= kill + 1, "one more for each kill at the most"
            assert len(counted) == len(set(counted))
        Ledger(directory).append(charge(-1), lambda before: None)
        told, more = told + len(acknowledged), more + len(unheard)
    print(
        f"\n{ledgers * KILLS} kills at {ledgers} ledgers: {told} charges told, {more} more counted"
    )
