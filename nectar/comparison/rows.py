"""The rows of the table: each variant's runs over the seeds, and what they come to together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # torch is imported with it
    from nectar.records.figures import RoundFigures, RunFigures

#: share of the best row's accuracy that is the target where none is given
TARGET_SHARE = 0.9

FLAGS = {
    "?": "not run to its last round, or not at all; left out of means",
    "!": "replies of sites were rejected",
    "*": "at or below chance, or its loss is not a number",
    "~": "far from the row's other seeds: by 0.02 and by 4.5 times the median distance from the median",
}
"""The marks at a seed's accuracy and what they say."""


@dataclass(frozen=True)
class Row:
    """A variant's runs.

    Parameters
    ----------
    runs : tuple of RunFigures or None
        The run of each seed; None where there is none.
    """

    label: str
    seeds: tuple[int, ...]
    runs: tuple[RunFigures | None, ...]

    @property
    def whole(self) -> list[RunFigures]:
        """The completed runs; means are over these."""
        return [run for run in self.runs if run is not None and run.completed]

    @property
    def finals(self) -> list[float]:
        """Their accuracies after the last round."""
        return [run.final for run in self.whole]

    @property
    def mean(self) -> float:
        """The mean accuracy after the last round; NaN without a completed run."""
        return mean(self.finals)

    @property
    def spread(self) -> float:
        """The sample standard deviation of the accuracy over the seeds; NaN with fewer than two."""
        return statistics.stdev(self.finals) if len(self.finals) > 1 else math.nan

    @property
    def audited(self) -> list[RunFigures]:
        """The completed runs of which `nectar audit images` has said what is found."""
        return [run for run in self.whole if not math.isnan(run.found)]

    def flags(self, index: int) -> str:
        """Return the marks of a seed, by its position."""
        run = self.runs[index]
        if run is None:
            return "?"
        marks = "" if run.completed else "?"
        marks += "!" if run.rejected else ""
        marks += "" if run.learned else "*"
        return marks + ("~" if run.completed and is_outlier(run.final, self.finals) else "")

    def per_round(self, figure: Callable[[RoundFigures], float]) -> float:
        """Return the mean of a figure over all rounds of training and all completed runs."""
        return mean([figure(one) for run in self.whole for one in run.trained])

    def total(self, figure: Callable[[RoundFigures], float]) -> float:
        """Return the sum of a figure over the rounds, as the mean over completed runs."""
        return mean([sum(map(figure, run.rounds)) for run in self.whole])

    def seconds(self, figure: Callable[[RoundFigures], float]) -> float:
        """Return the same sum over the runs that were made alone; NaN without one."""
        return mean([sum(map(figure, run.rounds)) for run in self.whole if run.alone])

    def to_target(self, target: float) -> ToTarget:
        """Return what the row spent until it reached an accuracy."""
        reached = [r for run in self.whole if (r := run.up_to(target)) is not None]
        return ToTarget(
            len(reached),
            len(self.whole),
            mean([rounds[-1].round for rounds in reached]),
            mean([sum(one.up + one.down for one in rounds) for rounds in reached]),
            mean([sum(one.up for one in rounds) for rounds in reached]),
        )

    def curve(self, number: int) -> list[RoundFigures]:
        """Return a round's figures of all completed runs that evaluated it."""
        return [
            one
            for run in self.whole
            for one in run.rounds
            if one.round == number and not math.isnan(one.accuracy)
        ]


@dataclass(frozen=True)
class ToTarget:
    """What it took to reach an accuracy, as means over the runs that did.

    Parameters
    ----------
    reached, of : int
        Runs that reached it, of all completed ones.
    rounds : float
        Rounds.
    total, up : float
        Bytes of all sites, both ways and up.
    """

    reached: int
    of: int
    rounds: float
    total: float
    up: float


def default_target(rows: Iterable[Row]) -> float:
    """Return a share of the best row's mean accuracy, rounded down to three digits; NaN without a completed run."""
    best = max((row.mean for row in rows if row.whole), default=math.nan)
    return math.nan if math.isnan(best) else math.floor(1000 * TARGET_SHARE * best) / 1000


def is_outlier(value: float, values: Sequence[float]) -> bool:
    """Tell whether ``value`` lies far from the others: the robust form of three standard deviations.

    Fewer than three values have no outlier. 0.02 is what seeds differ by in any case.
    """
    if len(values) < 3:
        return False
    middle = statistics.median(values)
    usual = statistics.median(abs(other - middle) for other in values)
    return abs(value - middle) > max(0.02, 3 * 1.4826 * usual)


def mean(values: Sequence[float]) -> float:
    """Return the mean; NaN of nothing."""
    return statistics.fmean(values) if values else math.nan


def describe(row: Row, index: int) -> dict[str, Any]:
    """Return a run as the JSON file has it."""
    run = row.runs[index]
    return {
        "variant": row.label,
        "seed": row.seeds[index],
        "flags": row.flags(index),
        "record": str(run.directory) if run else None,
        "completed": bool(run and run.completed),
    }
