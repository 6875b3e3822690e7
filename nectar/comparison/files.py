"""The comparison's files: tables, figures by run and by round, plots, and what was asked."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.config.resolved import Config
from common.config.text import dotted
from common.storage.files import plain, write_json, write_text
from nectar.charts import UNIT, Series, boxes, lines, save
from nectar.comparison.latex import latex_of
from nectar.comparison.rows import Row, describe, mean
from nectar.comparison.tables import Results, footnotes, markdown, tables
from nectar.comparison.tuning import Choice
from nectar.comparison.variants import file_name
from nectar.records.figures import RoundFigures, RunFigures
from server_app.tracking import EVENTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEMA = 1

ENDINGS = ("svg", "png", "pdf")
"""The files that each plot is written to."""


def write_all(
    directory: Path, results: Results, configs: Mapping[str, Config], facts: Mapping[str, Any]
) -> None:
    """Write every file of the comparison.

    Parameters
    ----------
    directory : Path
        Where they go; what lies there of an earlier call is replaced, file by file.
    facts : mapping
        What compare.json says beside rows and configurations.
    """
    directory.mkdir(parents=True, exist_ok=True)
    write_text(directory / "table.md", markdown(results))
    latex = latex_of(results.command, tables(results, every_round=False), footnotes(results))
    write_text(directory / "table.tex", latex)
    write_text(directory / "table.csv", _csv(_run_lines(results, differing(configs))))
    write_text(directory / "rounds.csv", _csv(_round_lines(results)))
    write_json(
        directory / "compare.json",
        {
            "schema": SCHEMA,
            **facts,
            "target": None if math.isnan(results.target) else results.target,
            "runs": [describe(row, i) for row in results.rows for i in range(len(row.seeds))],
            "searches": [_search(choice) for choice in results.choices],
            "failures": list(results.failures),
            "configurations": {label: config.to_dict() for label, config in configs.items()},
        },
    )
    _plot(directory, results)
    _link_events(directory / EVENTS, results)


def differing(configs: Mapping[str, Config]) -> dict[str, dict[str, Any]]:
    """Return, by dotted key and row, every setting that two rows have and have differently; and the method."""
    flat = {label: dotted(config.to_dict()) for label, config in configs.items()}
    keys = dict.fromkeys(key for values in flat.values() for key in values)
    found: dict[str, dict[str, Any]] = {}
    for key in keys:
        if key.startswith("track."):
            continue  # a name of each run's
        by_row = {label: values[key] for label, values in flat.items() if key in values}
        if key == "method" or len(set(map(repr, by_row.values()))) > 1:
            found[key] = by_row
    return found


def _run_lines(
    results: Results, settings: Mapping[str, Mapping[str, Any]]
) -> Iterable[dict[str, Any]]:
    """Yield a line a run."""
    for row in results.rows:
        for i, seed in enumerate(row.seeds):
            own = {key: by_row.get(row.label, "") for key, by_row in settings.items()}
            run = row.runs[i]
            head = {"variant": row.label, "seed": seed, **own, "flags": row.flags(i)}
            yield head | _figures(run, results)


def _figures(run: RunFigures | None, results: Results) -> dict[str, Any]:
    rounds = run.rounds if run else ()
    reached = run.up_to(results.target) if run else None
    last = rounds[-1] if rounds else None
    timed = rounds if run and run.alone else None
    accuracies = {one.round: one.accuracy for one in rounds}
    return {
        "completed": bool(run and run.completed),
        "accuracy": last.accuracy if last else math.nan,
        "validation": last.validation if last else math.nan,
        "rejected": run.rejected if run else "",
        "bytes_up": _sum(rounds, lambda one: one.up),
        "bytes_down": _sum(rounds, lambda one: one.down),
        "rounds_to_target": reached[-1].round if reached else "",
        "bytes_to_target": _sum(reached, lambda one: one.up + one.down),
        "bytes_up_to_target": _sum(reached, lambda one: one.up),
        "found": run.found if run else math.nan,
        "false_alarms": run.false_alarms if run else math.nan,
        "audited_in_part": bool(run and run.audited_in_part),
        "alone": bool(run and run.alone),
        "seconds_devices": _sum(timed, lambda one: one.device_seconds),
        "seconds_server": _sum(timed, lambda one: one.server_seconds),
        **{f"accuracy_{n}": accuracies.get(n, math.nan) for n in range(results.rounds + 1)},
        "record": str(run.directory) if run else "",
    }


def _round_lines(results: Results) -> Iterable[dict[str, Any]]:
    """Yield a line a run and round."""
    for row in results.rows:
        for seed, run in zip(row.seeds, row.runs, strict=True):
            for one in run.rounds if run else ():
                yield {
                    "variant": row.label,
                    "seed": seed,
                    "round": one.round,
                    "accuracy": one.accuracy,
                    "validation": one.validation,
                    "bytes_up": one.up,
                    "bytes_down": one.down,
                    "rejected": one.rejected,
                    "seconds_devices": one.device_seconds if run and run.alone else math.nan,
                    "seconds_server": one.server_seconds if run and run.alone else math.nan,
                }


def _sum(
    rounds: Sequence[RoundFigures] | None, figure: Callable[[RoundFigures], float]
) -> float | str:
    return sum(map(figure, rounds)) if rounds is not None else ""


def _csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Write rows of equal keys; what is no number stays empty."""
    text = io.StringIO()
    writer: csv.DictWriter[str] | None = None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(text, list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow({key: _cell(value) for key, value in row.items()})
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return ""
    return str(value).lower() if isinstance(value, bool) else plain(value)


def _search(choice: Choice) -> dict[str, Any]:
    return {
        "name": choice.search.name,
        "rows": list(choice.search.labels),
        "criterion": "mean validation accuracy after the last round",
        "trials": [
            {"settings": list(t.settings), "validation": [_null(a) for a in t.accuracies]}
            for t in choice.trials
        ],
        "chosen": list(choice.best.settings),
        "at the edge": choice.edges,
    }


def _null(value: float) -> float | None:
    return None if math.isnan(value) else value


def _plot(directory: Path, results: Results) -> None:
    """Draw mean accuracy with the band of its seeds, against rounds and against bytes, and a box over the seeds."""
    band = "accuracy (band: all seeds)"
    charts = {
        "accuracy-rounds": ("round", False, _by_round),
        "accuracy-bytes": (f"{UNIT} sent so far, up and down, all sites", True, _by_bytes),
    }
    for name, (x_label, log_x, x_of) in charts.items():
        series = [_series(row, results.rounds, x_of) for row in results.rows if row.whole]
        figure = lines(series, title=results.title, x_label=x_label, y_label=band, log_x=log_x)
        _save(figure, directory / name)
    finals = {row.label: row.finals for row in results.rows if row.whole}
    label = "accuracy after the last round (dots: seeds)"
    _save(boxes(finals, title=results.title, y_label=label), directory / "accuracy-seeds")


def _save(figure: Figure, place: Path) -> None:
    for ending in ENDINGS:
        save(figure, place.with_name(f"{place.name}.{ending}"))


def _link_events(folder: Path, results: Results) -> None:
    """Let one folder lead to the event files of all runs that TensorBoard was to show, by row and seed."""
    for row in results.rows:
        for seed, run in zip(row.seeds, row.runs, strict=True):
            events = run.directory / EVENTS if run is not None else None
            if events is None or not events.is_dir():
                continue
            folder.mkdir(exist_ok=True)
            link = folder / f"{file_name(row.label)}, seed {seed}"
            with suppress(
                OSError
            ):  # a file system without links: the output directory shows the runs
                link.unlink(missing_ok=True)
                link.symlink_to(events, target_is_directory=True)


def _series(row: Row, rounds: int, x_of: Callable[[Row, int], float]) -> Series:
    numbers = [n for n in range(rounds + 1) if row.curve(n)]
    by_round = [[one.accuracy for one in row.curve(n)] for n in numbers]
    return Series(
        row.label,
        [x_of(row, n) for n in numbers],
        [mean(values) for values in by_round],
        [min(values) for values in by_round],
        [max(values) for values in by_round],
    )


def _by_round(row: Row, number: int) -> float:
    return number


def _by_bytes(row: Row, number: int) -> float:
    sent = [sum(o.up + o.down for o in run.rounds if o.round <= number) for run in row.whole]
    return mean(sent)
