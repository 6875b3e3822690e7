"""Ratios of two ways to do the same work, from interleaved pairs measured in one process.

A machine's speed drifts with its other load, but both halves of a pair see the same drift. So the
ratio is taken pair by pair; its median is the result, its spread the uncertainty.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

LEAST_PAIRS = 7
"""Fewer pairs have no median worth printing."""


@dataclass(frozen=True)
class Claim:
    """What a ratio must be: ``at_least`` so fast, or ``at_most`` so slow, as the reference.

    One of the two is given, or none where a figure is only stated. With ``at_least`` the ratio is
    reference / ours (times as fast), otherwise it is ours / reference (times the cost, which is
    ``of`` time unless it says otherwise).
    """

    at_least: float | None = None
    at_most: float | None = None
    of: str = "the time"

    def ratio(self, reference: float, ours: float) -> float:
        """Return one pair's ratio, in the claim's direction."""
        return ours / reference if self.at_least is None else reference / ours

    def holds(self, ratio: float) -> bool:
        """Return whether a ratio keeps the claim."""
        if self.at_least is not None:
            return ratio >= self.at_least
        return self.at_most is None or ratio <= self.at_most

    def __str__(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:g}x as fast"
        return "nothing" if self.at_most is None else f"<= {self.at_most:g}x {self.of}"


@dataclass(frozen=True)
class Row:
    """A line of the table: both ways' medians in ``unit``, the pairs' ratios and the claim they serve."""

    name: str
    reference: float
    ours: float
    ratios: tuple[float, ...]
    claim: Claim
    unit: str = "s"

    @property
    def ratio(self) -> float:
        """The median of the pairs' ratios."""
        return median(self.ratios)

    @property
    def holds(self) -> bool:
        """Whether the median keeps the claim."""
        return self.claim.holds(self.ratio)


def compare(
    name: str,
    reference: Callable[[int], object],
    ours: Callable[[int], object],
    *,
    pairs: int,
    claim: Claim,
    clock: Callable[[], float] | None = None,
) -> Row:
    """Measure ``reference`` and ``ours`` in interleaved pairs, after one call of each to warm up.

    Parameters
    ----------
    reference
        The plain way; called with the pair's number, so that both can do the very same
        work.
    pairs
        How many pairs, at least 7; which of the two goes first alternates.
    clock
        The clock, by default wall time; `time.process_time` on a shared machine.

    Raises
    ------
    ValueError
        Too few pairs.
    """
    if pairs < LEAST_PAIRS:
        raise ValueError(f"{pairs} pairs are too few for a median: give at least {LEAST_PAIRS}")
    now = clock or time.perf_counter
    seconds: dict[Callable[[int], object], list[float]] = {reference: [], ours: []}
    for work in (reference, ours):
        work(0)
    for pair in range(1, pairs + 1):
        for work in (reference, ours) if pair % 2 else (ours, reference):
            begin = now()
            work(pair)
            seconds[work].append(now() - begin)
    both = zip(seconds[reference], seconds[ours], strict=True)
    return Row(
        name=name,
        reference=median(seconds[reference]),
        ours=median(seconds[ours]),
        ratios=tuple(claim.ratio(*pair) for pair in both),
        claim=claim,
    )


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Have torch compute with so many threads meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def agreeing(
    work: Callable[[int], float], expected: dict[int, float], tolerance: float
) -> Callable[[int], float]:
    """Return ``work``, raising if its loss at a step is not the one first seen there."""

    def checked(step: int) -> float:
        loss = work(step)
        wanted = expected.setdefault(step, loss)
        if abs(loss - wanted) > tolerance * abs(wanted):
            raise AssertionError(f"step {step}: losses {loss} and {wanted} differ")
        return loss

    return checked


def figure_elsewhere(module: str, *words: str) -> float:
    """Return the number that ``python -m module words`` prints: a peak of memory needs a new process."""
    # one arena a process: with several, glibc's own layout moves the peak by tens of MB
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).resolve().parent.parent,
        env=os.environ | {"MALLOC_ARENA_MAX": "1"},
    )
    return float(done.stdout)


def peak_memory() -> float:
    """Return the most memory that this process has had, in MB (Linux).

    getrusage's figure will not do: a new process takes its parent's over.
    """
    return _status("VmHWM:")


def memory_from_now_on() -> float:
    """Return the memory that this process has, in MB, and have `peak_memory` begin there."""
    now = _status("VmRSS:")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return now


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith(name))
    return int(kilobytes) * 1024 / 1e6


def table(rows: list[Row]) -> str:
    """Return the rows as text, one line each, with the ratio's spread over the pairs."""
    lines = [
        f"{'benchmark':<34} {'reference':>10} {'ours':>10} {'ratio':>7} {'min..max':>13}  claim"
    ]
    for row in rows:
        spread = f"{min(row.ratios):.2f}..{max(row.ratios):.2f}"
        stated = row.claim == Claim()
        verdict = "stated" if stated else f"{row.claim}: {'held' if row.holds else 'MISSED'}"
        lines.append(
            f"{row.name:<34} {row.reference:>{10 - len(row.unit)}.3f}{row.unit} "
            f"{row.ours:>{10 - len(row.unit)}.3f}{row.unit} "
            f"{row.ratio:>6.2f}x {spread:>13}  {verdict}"
        )
    return "\n".join(lines)
