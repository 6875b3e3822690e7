"""A comparison's figures as two tidy frames, one line per run and one per round, and the summary of each row.

`frames` reads them from records, `summary` and `curves` combine the seeds, `csv_of` writes them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from common.config.resolved import Config
from common.config.text import dotted
from common.storage.files import plain
from nectar.records.record import OTHERS, OVER_SITES, rounds_frame

if (
    TYPE_CHECKING
):  # quick commands import this module: no pandas, and no torch, which figures import
    from pandas import DataFrame

    from nectar.records.record import RunRecord

#: share of the best row's accuracy that is the target where none is given
TARGET_SHARE = 0.9

FLAGS = {
    "?": "not finished, or not run; left out of means",
    "!": "replies of sites were rejected",
    "*": "at or below chance, or its loss is not a number",
    "°": "over fewer classes than the data set has: there were no examples of the others to evaluate on",
    "~": "far from the row's other seeds: by 0.02 and by 4.5 times the median distance from the median",
}
"""The marks at a seed's accuracy and what they say."""

Runs = Mapping[str, Mapping[int, "RunRecord | None"]]
"""The records by row and seed; None for a run without a record."""

MORE = (*OTHERS, *(f"site_{name}" for name in OVER_SITES))
"""Columns of the measures other than accuracy, and of the run's measure over the sites."""

_RUN, _SECONDS, _SENT = (
    ["variant", "seed"],
    ["seconds_devices", "seconds_server"],
    ["sent", "sent_up"],
)

#: how the columns begin that have the measure of one of several networks
_MODELS = "models."

#: columns of rounds.csv
ROUND = [
    *("variant", "seed", "round", "accuracy", "validation", "bytes_up", "bytes_down", "rejected"),
    *(*_SECONDS, *MORE),
]

#: columns that tables and charts read and no file has
_UNWRITTEN = ("final", "bytes", "hardware", "learned", "partial", "epsilon")


def frames(
    runs: Runs, target: float | None, configs: Mapping[str, Config] | None = None, longest: int = 0
) -> tuple[DataFrame, DataFrame, float]:
    """Return a frame with a line for each run, one with a line for each round of each, and the target.

    Parameters
    ----------
    target : float or None
        The accuracy up to which rounds and bytes are counted; None: what `default_target` says.
    configs : mapping of str to Config, optional
        By row. A setting in which two rows differ becomes a column.
    longest : int
        Rounds of the longest run, which have a column each even if no run got so far.
    """
    from pandas import DataFrame, concat

    configs = configs or {}
    settings = differing(configs)
    of_runs, of_rounds = [], []
    for label, by_seed in runs.items():
        own = {key: by_row.get(label, "") for key, by_row in settings.items()}
        network = configs[label].model.name if label in configs else ""
        lines = []
        for seed, run in by_seed.items():
            found = _rounds(run)
            head = {"variant": label, "seed": seed, **own, "flags": ""}
            lines.append(head | _of_run(run, found, network))
            of_rounds.append(
                found.assign(variant=label, seed=seed, completed=lines[-1]["completed"])
            )
        finals = [line["final"] for line in lines if line["completed"]]
        of_runs += [line | {"flags": _flags(line, finals)} for line in lines]
    by_round = concat([each for each in of_rounds if len(each)] or of_rounds, ignore_index=True)
    # as objects, counts stay integers where others are missing
    by_run = DataFrame(of_runs, dtype=object).astype({"completed": bool, "alone": bool})
    target = default_target(by_run) if target is None else target
    once = by_round.drop_duplicates([*_RUN, "round"], keep="last")  # no writer repeats a round
    each = once.pivot(index=_RUN, columns="round", values="accuracy")
    columns = range(max([longest, *each.columns]) + 1)
    accuracies = each.reindex(columns=columns).add_prefix("accuracy_")
    by_run = by_run.join(accuracies, on=_RUN)
    reached = by_round[by_round["measured"] >= target].groupby(_RUN)[["round", *_SENT]].first()
    reached.columns = ["rounds_to_target", "bytes_to_target", "bytes_up_to_target"]
    return by_run.join(reached.astype(object), on=_RUN), by_round, target


def differing(configs: Mapping[str, Config]) -> dict[str, dict[str, Any]]:
    """Return, by dotted key and row, every setting whose value differs between rows that have it, and the method."""
    flat = {label: dotted(config.to_dict()) for label, config in configs.items()}
    found: dict[str, dict[str, Any]] = {}
    for key in dict.fromkeys(key for values in flat.values() for key in values):
        by_row = {label: values[key] for label, values in flat.items() if key in values}
        differs = key == "method" or len(set(map(repr, by_row.values()))) > 1
        if differs and not key.startswith("track."):  # a tracker's names are each run's
            found[key] = by_row
    return found


def _rounds(run: RunRecord | None) -> DataFrame:
    """Return a run's configured rounds, the bytes until each, and its seconds if it ran alone."""
    found = rounds_frame(run.rounds if run else (), run.config.evaluation.measure if run else "")
    if run is not None:
        found = found[found["round"] <= run.config.rounds]
    hidden = {} if run and run.alone else dict.fromkeys(_SECONDS, math.nan)
    up, down = found["bytes_up"].cumsum(), found["bytes_down"].cumsum()
    return found.assign(sent=up + down, sent_up=up, **hidden)


def _of_run(run: RunRecord | None, rounds: DataFrame, network: str) -> dict[str, Any]:
    """Return a run's line: figures after the last round, or the best one of a run with patience; sums over all."""
    best = rounds[rounds["round"] == run.result_round] if run and run.result_round else rounds
    last = (best if len(best) else rounds).to_dict("records")[-1:]
    result = last[0] if last else dict.fromkeys(rounds, math.nan)
    end = rounds["round"].iloc[-1] if len(rounds) else 0
    final = result["measured"] if end else math.nan
    networks = {k: v for k, v in result.items() if k.startswith(_MODELS) and not math.isnan(v)}
    # a run with patience may end sooner
    full = bool(run and len(rounds) and (run.result_round or end == run.config.rounds))
    completed = full and bool(run and run.completed)
    audit = run.audit if run and completed and run.audit and run.audit["round"] == end else {}
    attacks = audit["all"]["attacks"] if audit else {}
    strongest = attacks[audit["all"]["strongest"]] if attacks else {}
    summed = ("rejected", "bytes_up", "bytes_down", *_SECONDS)
    return {
        "completed": completed,
        **{name: result[name] for name in ("accuracy", "validation", *MORE, "epsilon")},
        **{name: rounds[name].sum(min_count=1) for name in summed},
        "found": strongest.get("found", math.nan),
        "false_alarms": strongest.get("false_alarms", math.nan),
        "audited_in_part": bool(strongest) and audit.get("rounds_not_kept", 0) > 0,
        "alone": bool(run and run.alone),
        "record": str(run.directory) if run else "",
        "final": final,
        "bytes": rounds["sent"].iloc[-1] if len(rounds) else math.nan,
        "partial": result["partial"] is True,
        "learned": run is not None and _has_learned(run, rounds),
        "hardware": _hardware(run.provenance.get("hardware", {})) if run else "",
        **(networks or {f"{_MODELS}{network}": final}),
    }


def _has_learned(run: RunRecord, rounds: DataFrame) -> bool:
    """Return whether a run ended above chance, with a loss that is a number."""
    by_class = ((line.get("test") or {}).get("per_class") for line in run.rounds)
    chance = next((1 / len(each) for each in by_class if each), 0.0)
    ends = rounds[["diverged", "accuracy"]].tail(1)
    return bool((~ends["diverged"] & (ends["accuracy"] > chance)).any())


def _hardware(stated: Mapping[str, Any]) -> str:
    """Return the name of the GPU or the processor; empty if the record does not state it."""
    cuda = stated.get("cuda") if str(stated.get("device", "")).startswith("cuda") else None
    return cuda[0] if cuda else str(stated.get("machine", ""))


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
    """Return a line for each row, in order: means over its completed runs, NaN without one.

    Seconds are means over the runs that were made alone, what an audit found over those audited, what was spent to
    the target over those that reached it; ``runs``, ``audited`` and ``reached`` count them.
    """
    by_row = runs[runs["completed"]].groupby("variant", sort=False)
    trained = rounds[rounds["completed"] & (rounds["round"] > 0)]
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
    rows = found.join(a_round.agg(mean)).reindex(runs["variant"].unique())
    counts = ["runs", "audited", "audited_in_part", "reached"]
    rows[counts] = rows[counts].fillna(0).astype(int)
    return rows


def curves(rounds: DataFrame) -> DataFrame:
    """Return, by row and round, mean, lowest and highest figure of the completed runs, and the bytes until then."""
    judged = rounds[rounds["completed"] & rounds["measured"].notna()]
    return judged.groupby(["variant", "round"], sort=False).agg(
        mean=("measured", mean),
        low=("measured", "min"),
        high=("measured", "max"),
        sent=("sent", mean),
    )


def default_target(by_run: DataFrame) -> float:
    """Return a share of the best row's mean accuracy, rounded down to three digits; NaN without a completed run."""
    done = by_run[by_run["completed"]]
    best = done.groupby("variant")["final"].agg(mean).max()
    return math.nan if math.isnan(best) else math.floor(1000 * TARGET_SHARE * best) / 1000


def _flags(line: Mapping[str, Any], finals: Sequence[float]) -> str:
    marks = {
        "?": not line["completed"],
        "!": line["rejected"] > 0,
        "*": line["record"] and not line["learned"],
        "°": line["partial"],
        "~": line["completed"] and is_outlier(line["final"], finals),
    }
    return "".join(mark for mark, holds in marks.items() if holds)


def is_outlier(value: float, values: Sequence[float]) -> bool:
    """Return whether ``value`` is far from the others: the robust form of three standard deviations.

    Fewer than three values have no outlier. Seeds differ by 0.02 in any case.
    """
    if len(values) < 3:
        return False
    middle = statistics.median(values)
    usual = statistics.median(abs(other - middle) for other in values)
    return abs(value - middle) > max(0.02, 3 * 1.4826 * usual)


# -- as a file ----------------------------------------------------------------------------------


def csv_of(frame: DataFrame, columns: Sequence[str] = ()) -> str:
    """Return a frame as comma-separated text; what is missing stays empty, and no cell begins a formula.

    Without ``columns``, those that only tables and charts read are left out.
    """
    kept = [n for n in frame if n not in _UNWRITTEN and not n.startswith(_MODELS)]
    return str(frame[columns or kept].map(_cell).to_csv(index=False, lineterminator="\n"))


def _cell(value: Any) -> str:
    if isinstance(value, float) and math.isnan(value):
        return ""
    return str(value).lower() if isinstance(value, bool) else str(plain(value))
