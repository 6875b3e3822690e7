"""A share of a comparison's runs, for the tasks of a job array that have one output directory."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from common.errors import ConfigError
from nectar.comparison.comparison import Comparison
from nectar.comparison.plan import Task

PRINT = "--print"


def parse_share(text: str) -> tuple[int, int]:
    """Return K and N of ``K/N``; ConfigError if it is none, or K is not from 1 to N."""
    found = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", text)
    if found is None or int(found[1]) > int(found[2]):
        raise ConfigError(
            f"--only={text}: write K/N with K from 1 to N, such as 1/8, 2/8, ..., 8/8."
        )
    return int(found[1]), int(found[2])


def share_of(comparisons: Sequence[Comparison], share: tuple[int, int]) -> list[Task]:
    """Return the K-th of N shares of the runs: every N-th, so that long rows are divided evenly.

    Raises
    ------
    ConfigError
        If rows are searched: what is run then depends on all runs of the search.
    """
    if any(each.trials for each in comparisons):
        raise ConfigError(
            "--only divides runs that are known beforehand, and these rows are searched: give every task of the array "
            "the same command without --only, and each carries out what no other has."
        )
    number, of = share
    return _runs(comparisons)[number - 1 :: of]


def printed(comparisons: Sequence[Comparison], words: Sequence[str]) -> str:
    """Return a command for each run, a line each with the run's name after it: the comparison's, for one share.

    Parameters
    ----------
    comparisons : sequence of Comparison
        The comparison, or a table's or a grid's.
    words : sequence of str
        What was typed after ``nectar``.

    Raises
    ------
    ConfigError
        If rows are searched.
    """
    share_of(comparisons, (1, 1))
    typed = shlex.join(["nectar", *(word for word in words if word != PRINT)])
    names = [task.name for task in _runs(comparisons)]
    return "\n".join(
        f"{typed} --only {k}/{len(names)}  # {name}" for k, name in enumerate(names, 1)
    )


def _runs(comparisons: Sequence[Comparison]) -> list[Task]:
    return list({task.identity: task for each in comparisons for task in each.tasks}.values())


def carry_out_share(comparisons: Sequence[Comparison], tasks: Sequence[Task], logs: Path) -> int:
    """Carry the runs of a share out; return how many failed. No table is written: the others' runs may be missing."""
    scheduler = comparisons[0].scheduler(logs)
    scheduler.carry_out(tasks)
    return len(scheduler.failures)
