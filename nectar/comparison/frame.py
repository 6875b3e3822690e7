"""A comparison's figures as two tidy frames, a line for each run and one for each round, and what each row comes to.

`frames` reads them from the runs, `summary` and `curves` combine the seeds, `csv_of` writes them.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from common.config.resolved import Config
from common.config.text import dotted
from common.storage.files import plain
from nectar.records.record import OTHERS, OVER_SITES

if (
    TYPE_CHECKING
):  # quick commands import this module: no pandas, and no torch, which figures import
    from pandas import DataFrame

    from nectar.records.record import RunFigures

#: share of the best row's accuracy that is the target where none is given
TARGET_SHARE = 0.9

FLAGS = {
    "?": "not run to its last round, or not at all; left out of means",
    "!": "replies of sites were rejected",
    "*": "at or below chance, or its loss is not a number",
    "°": "over fewer classes than there are: of the others nothing was there to be judged by",
    "~": "far from the row's other seeds: by 0.02 and by 4.5 times the median distance from the median",
}
"""The marks at a seed's accuracy and what they say."""

Runs = Mapping[str, Mapping[int, "RunFigures | None"]]
"""The runs by row and seed; None where there is none."""

#: columns that tables and charts read and no file has
_UNWRITTEN = [
    *("final", "measured", "models", "bytes", "hardware", "whole"),
    *("floats_up", "sent", "makes_images", "epsilon"),
]

MORE = (*OTHERS, *(f"site_{name}" for name in OVER_SITES))
"""Columns of the measures beside accuracy, and of what the run's measure is over the sites."""


def frames(
    runs: Runs, rounds: int, target: float, configs: Mapping[str, Config] | None = None
) -> tuple[DataFrame, DataFrame]:
    """Return a frame with a line for each run, and one with a line for each round of each.

    Parameters
    ----------
    rounds : int
        Rounds of the longest run.
    target : float
        The accuracy up to which rounds and bytes are counted.
    configs : mapping of str to Config, optional
        By row. A setting in which two rows differ becomes a column.
    """
    from pandas import DataFrame

    configs = configs or {}
    settings = differing(configs)
    of_runs, of_rounds = [], []
    for label, by_seed in runs.items():
        own = {key: by_row.get(label, "") for key, by_row in settings.items()}
        network = configs[label].model.name if label in configs else ""
        finals = _finals(by_seed)
        for seed, run in by_seed.items():
            head = {"variant": label, "seed": seed}
            flags = {"flags": _flags(run, finals)}
            of_runs.append(head | own | flags | _of_run(run, rounds, target, network))
            of_rounds += [head | line for line in _of_rounds(run)]
    # as objects, counts stay whole numbers where others are missing
    by_run, by_round = (
        DataFrame(of_runs, dtype=object),
        DataFrame(of_rounds, columns=_ROUND, dtype=object),
    )
    return by_run.astype({"completed": bool, "alone": bool}), by_round.astype({"whole": bool})


def differing(configs: Mapping[str, Config]) -> dict[str, dict[str, Any]]:
    """Return, by dotted key and row, every setting that two rows have and have differently; and the method."""
    flat = {label: dotted(config.to_dict()) for label, config in configs.items()}
    found: dict[str, dict[str, Any]] = {}
    for key in dict.fromkeys(key for values in flat.values() for key in values):
        by_row = {label: values[key] for label, values in flat.items() if key in values}
        differs = key == "method" or len(set(map(repr, by_row.values()))) > 1
        if differs and not key.startswith("track."):  # a tracker's names are each run's
            found[key] = by_row
    return found


def _of_run(run: RunFigures | None, count: int, target: float, network: str) -> dict[str, Any]:
    rounds = run.rounds if run else ()
    reached = run.up_to(target) if run else None
    last = run.result if run else None
    accuracies = {one.round: one.accuracy for one in rounds}
    others = last.others if last else {}
    final = run.final if run else math.nan
    alone = bool(run and run.alone)
    judged = last.models if last and last.round else {}
    up, down = sum(one.bytes_up for one in rounds), sum(one.bytes_down for one in rounds)
    return {
        "completed": bool(run and run.completed),
        "accuracy": last.accuracy if last else math.nan,
        "validation": last.validation if last else math.nan,
        "rejected": run.rejected if run else math.nan,
        "bytes_up": up,
        "bytes_down": down,
        "rounds_to_target": reached[-1].round if reached else math.nan,
        "bytes_to_target": sum(o.bytes_up + o.bytes_down for o in reached) if reached else math.nan,
        "bytes_up_to_target": sum(o.bytes_up for o in reached) if reached else math.nan,
        "found": run.found if run else math.nan,
        "false_alarms": run.false_alarms if run else math.nan,
        "audited_in_part": bool(run and run.audited_in_part),
        "alone": alone,
        "seconds_devices": sum(o.seconds_devices for o in rounds) if alone else math.nan,
        "seconds_server": sum(o.seconds_server for o in rounds) if alone else math.nan,
        **{f"accuracy_{n}": accuracies.get(n, math.nan) for n in range(count + 1)},
        **{name: others.get(name, math.nan) for name in MORE},
        "record": str(run.directory) if run else "",
        "final": final,
        # by network; "" stands for the one that the server judges
        "models": {"": final, **(judged or {network: final})},
        "bytes": up + down,
        "epsilon": last.epsilon if last else math.nan,
        "hardware": run.hardware if run else "",
    }


_ROUND = [
    *("variant", "seed", "round", "accuracy", "validation", "bytes_up", "bytes_down", "rejected"),
    *("seconds_devices", "seconds_server", *MORE, "measured", "whole", "floats_up", "sent"),
    "makes_images",
]


def _of_rounds(run: RunFigures | None) -> Iterator[dict[str, Any]]:
    if run is None:
        return
    sent = itertools.accumulate(one.bytes_up + one.bytes_down for one in run.rounds)
    hidden = {} if run.alone else dict.fromkeys(("seconds_devices", "seconds_server"), math.nan)
    for one, so_far in zip(run.rounds, sent, strict=True):
        more = {"measured": one.measured, "whole": run.completed, "sent": so_far}
        yield {**vars(one), **one.others, **hidden, **more}


# -- what is made of the seeds ------------------------------------------------------------------


def mean(values: Iterable[float]) -> float:
    """Return the mean; NaN of nothing."""
    found = list(values)
    return statistics.fmean(found) if found else math.nan


def spread(values: Iterable[float]) -> float:
    """Return the sample standard deviation; NaN of fewer than two values."""
    found = list(values)
    return statistics.stdev(found) if len(found) > 1 else math.nan


def _known_mean(values: Iterable[float]) -> float:
    """Return the mean of what is not missing; NaN of nothing."""
    return mean(value for value in values if not math.isnan(value))


def summary(runs: DataFrame, rounds: DataFrame) -> DataFrame:
    """Return a line for each row, in order: means over its completed runs, NaN if there is none.

    Seconds are means over the runs that were made alone, what an audit found over those audited, what was spent to
    the target over those that reached it; ``runs``, ``audited`` and ``reached`` count them.
    """
    by_row = runs[runs["completed"]].groupby("variant", sort=False)
    trained = rounds[rounds["whole"] & (rounds["round"] > 0)]
    a_round = trained.groupby("variant", sort=False)[["bytes_up", "bytes_down", "floats_up"]]
    found = by_row.agg(
        runs=("seed", "size"),
        mean=("final", mean),
        spread=("final", spread),
        audited=("found", "count"),
        found=("found", _known_mean),
        false_alarms=("false_alarms", _known_mean),
        audited_in_part=("audited_in_part", any),
        reached=("rounds_to_target", "count"),
        rounds_to_target=("rounds_to_target", _known_mean),
        bytes_to_target=("bytes_to_target", _known_mean),
        bytes_up_to_target=("bytes_up_to_target", _known_mean),
        bytes=("bytes", mean),
        seconds_devices=("seconds_devices", _known_mean),
        seconds_server=("seconds_server", _known_mean),
    )
    whole = found.join(a_round.agg(mean)).reindex(runs["variant"].unique())
    counts = ["runs", "audited", "audited_in_part", "reached"]
    whole[counts] = whole[counts].fillna(0).astype(int)
    return whole


def curves(rounds: DataFrame) -> DataFrame:
    """Return, by row and round, mean, lowest and highest figure of the completed runs, and the bytes until then."""
    judged = rounds[rounds["whole"] & rounds["measured"].notna()]
    return judged.groupby(["variant", "round"], sort=False).agg(
        mean=("measured", mean),
        low=("measured", "min"),
        high=("measured", "max"),
        sent=("sent", mean),
    )


def default_target(runs: Runs) -> float:
    """Return a share of the best row's mean accuracy, rounded down to three digits; NaN without a completed run."""
    means = (mean(finals) for by_seed in runs.values() if (finals := _finals(by_seed)))
    best = max(means, default=math.nan)
    return math.nan if math.isnan(best) else math.floor(1000 * TARGET_SHARE * best) / 1000


def _finals(by_seed: Mapping[int, RunFigures | None]) -> list[float]:
    return [run.final for run in by_seed.values() if run is not None and run.completed]


def _flags(run: RunFigures | None, finals: Sequence[float]) -> str:
    if run is None:
        return "?"
    far = run.completed and is_outlier(run.final, finals)
    partial = run.result is not None and run.result.partial
    marks = {
        "?": not run.completed,
        "!": run.rejected,
        "*": not run.learned,
        "°": partial,
        "~": far,
    }
    return "".join(mark for mark, holds in marks.items() if holds)


def is_outlier(value: float, values: Sequence[float]) -> bool:
    """Return whether ``value`` lies far from the others: the robust form of three standard deviations.

    Fewer than three values have no outlier. Seeds differ by 0.02 in any case.
    """
    if len(values) < 3:
        return False
    middle = statistics.median(values)
    usual = statistics.median(abs(other - middle) for other in values)
    return abs(value - middle) > max(0.02, 3 * 1.4826 * usual)


# -- as a file ----------------------------------------------------------------------------------


def csv_of(frame: DataFrame) -> str:
    """Return a frame as comma-separated text; what is missing stays empty, and no cell begins a formula."""
    written = frame.drop(columns=_UNWRITTEN, errors="ignore").map(_cell)
    return str(written.to_csv(index=False, lineterminator="\n"))


def _cell(value: Any) -> str:
    if isinstance(value, float) and math.isnan(value):
        return ""
    return str(value).lower() if isinstance(value, bool) else str(plain(value))
