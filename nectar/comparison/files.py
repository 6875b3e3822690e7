"""A comparison's files: tables, figures by run and by round, charts, and the request."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.config.resolved import Config
from common.config.text import scalar
from common.storage.files import write_json, write_text
from nectar.charts import UNIT, Series, boxes, lines, save
from nectar.comparison.frame import ROUND, csv_of, curves, mean, spread
from nectar.comparison.request import Axis, file_name
from nectar.comparison.results import Results
from nectar.comparison.tuning import Choice
from nectar.text import capital
from server_app.tracking import EVENTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEMA = 1

ENDINGS = ("svg", "png", "pdf")
"""The files that each chart is written to."""

#: the ratio of the largest to the smallest value from which an axis is logarithmic
_FAR_APART = 20


def write(results: Results) -> None:
    """Write every file of a comparison, replacing earlier ones; of several cells, the files of all together.

    Of rows over seeds the charts of their rounds, of a grid one for each axis of numbers.
    """
    directory = results.directory
    directory.mkdir(parents=True, exist_ok=True)
    write_text(directory / "table.md", results.markdown())
    write_text(directory / "table.tex", results.latex())
    write_text(directory / "table.csv", results.csv())
    for axis in results.axes:
        _draw_axis(results, axis)
    if not results.by_cell:
        write_text(directory / "rounds.csv", csv_of(results.by_round, ROUND))
        _draw(results)
        _link_events(directory / EVENTS, results)


def write_facts(results: Results, configs: Mapping[str, Config], facts: Mapping[str, Any]) -> None:
    """Write compare.json of rows over seeds: their runs and configurations, and ``facts``."""
    columns = ["variant", "seed", "flags", "record", "completed"]
    listed = results.by_run[columns].to_dict("records")
    write_json(
        results.directory / "compare.json",
        {
            "schema": SCHEMA,
            "command": results.command,
            **facts,
            "target": _null(results.target),
            "runs": [run | {"record": run["record"] or None} for run in listed],
            "searches": [_search(choice, results.what) for choice in results.choices],
            "failures": list(results.failures),
            "configurations": {label: config.to_dict() for label, config in configs.items()},
        },
    )


def _search(choice: Choice, what: str) -> dict[str, Any]:
    return {
        "name": choice.search.name,
        "rows": list(choice.search.labels),
        "criterion": f"mean validation {what} after the last round",
        "trials": [
            {"settings": list(settings), "validation": list(map(_null, accuracies))}
            for settings, accuracies in choice.trials.items()
        ],
        "chosen": list(choice.best),
        "at the edge": choice.edges,
    }


def _null(value: float) -> float | None:
    return None if math.isnan(value) else value


def _draw(results: Results) -> None:
    """Draw the mean with the band of its seeds, against rounds and against bytes, and a box over the seeds."""
    done = results.by_run[results.by_run["completed"]]
    finals = {label: list(own["final"]) for label, own in done.groupby("variant", sort=False)}
    found, axes = curves(results.by_round).reset_index(), ("mean", "low", "high")
    for name, x, label, log_x in (
        (f"{results.measure}-rounds", "round", "round", False),
        (f"{results.measure}-bytes", "sent", f"{UNIT} sent so far by and to all sites", True),
    ):
        series = []
        for row in finals:
            own = found[found["variant"] == row]
            series.append(Series(row, *(list(own[column]) for column in (x, *axes))))
        y_label = f"{results.what} (band: all seeds)"
        figure = lines(series, title=results.title, x_label=label, y_label=y_label, log_x=log_x)
        _save(figure, results.directory / name)
    label, place = f"{results.what} after the last round (dots: seeds)", f"{results.measure}-seeds"
    _save(boxes(finals, title=results.title, y_label=label), results.directory / place)


def _draw_axis(results: Results, axis: Axis) -> None:
    """Draw the measure against an axis of numbers: a line a row and combination of the other axes, with error bars."""
    values = [scalar(text) for text in axis.values]
    if len(values) < 2 or not all(type(value) in (int, float) for value in values):
        return
    x = {text: float(value) for text, value in zip(axis.values, values, strict=True)}  # type: ignore[arg-type]
    done = results.by_run[results.by_run["completed"] & results.by_run["final"].notna()]
    done = done.assign(x=done[axis.key].map(x))
    others = [other for other in results.axes if other != axis]
    series = []
    for (label, *rest), own in done.groupby(["variant", *(a.key for a in others)], sort=False):
        name = " ".join([label, *(f"{a.name}={v}" for a, v in zip(others, rest, strict=True))])
        finals = own.groupby("x")["final"]
        at, error = finals.agg(mean), finals.agg(spread).fillna(0.0)
        series.append(Series(name, list(at.index), list(at), error=list(error)))
    several = any(any(one.error or ()) for one in series)
    figure = lines(
        series,
        title=f"{capital(results.what)} after the last round",
        x_label=axis.key,
        y_label=f"{results.what} (mean ± standard deviation)" if several else results.what,
        log_x=min(x.values()) > 0 and max(x.values()) > _FAR_APART * min(x.values()),
    )
    _save(figure, results.directory / f"{results.measure}-{file_name(axis.key)}")


def _save(figure: Figure, place: Path) -> None:
    for ending in ENDINGS:
        save(figure, place.with_name(f"{place.name}.{ending}"))


def _link_events(folder: Path, results: Results) -> None:
    """Link the TensorBoard event files of all runs into one folder, by row and seed."""
    for run in results.by_run.itertuples():
        events = Path(run.record, EVENTS)
        if not run.record or not events.is_dir():
            continue
        folder.mkdir(exist_ok=True)
        link = folder / f"{file_name(run.variant)}, seed {run.seed}"
        with suppress(OSError):  # a file system without links: the output directory shows the runs
            link.unlink(missing_ok=True)
            link.symlink_to(events, target_is_directory=True)
