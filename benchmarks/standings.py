"""Where the methods stand: comparisons into one CSV, and from that a page's tables and plots.

``python -m benchmarks.standings docs/results/NAME.csv [GROUP=COMPARISON...]`` takes up the runs of comparisons, each
the directory that ``nectar compare`` wrote, instead of what the file had of the same row and seed; then it writes
the tables between the marks of ``NAME.md`` and the plots into ``docs/images``. Without a comparison it only writes.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from common.errors import ConfigError
from common.storage.csv_text import csv_text
from common.storage.files import write_text
from nectar.charts import Series, lines, save

BEGIN, END = "<!-- standings: written by benchmarks/standings.py -->", "<!-- /standings -->"
_NOTHING = "–"


@dataclass(frozen=True)
class Run:
    """A run's figures; NaN where one was not measured.

    Parameters
    ----------
    group, row : str
        The table, and the row in it.
    seed : int
        The seed.
    accuracy : float
        After the last round, on the test images.
    up : float
        MB that all sites sent.
    seconds : float
        Seconds that all sites computed, of a run with no other beside it.
    found, alarms : float
        Shares of members, and of controls, that the strongest attack of `nectar audit images` takes for members.
    """

    group: str
    row: str
    seed: int
    accuracy: float
    up: float
    seconds: float = math.nan
    found: float = math.nan
    alarms: float = math.nan


@dataclass(frozen=True)
class Plot:
    """One plot: what stands at its x axis, and how."""

    name: str
    figure: str
    x_label: str
    scale: float = 1.0
    log_x: bool = True


PLOTS = (
    Plot("mb", "up", "MB sent by all sites"),
    Plot("seconds", "seconds", "seconds that all sites computed"),
    Plot("found", "found", "% of members found at 1 % false alarms", 100.0, log_x=False),
)


def read(path: Path) -> list[Run]:
    """Read the runs of a CSV file; of one that is not there, nothing."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [_run(line["group"], line["row"], line) for line in csv.DictReader(file)]


def taken_up(group: str, comparison: Path) -> Iterator[Run]:
    """Yield the completed runs of a comparison.

    Raises
    ------
    ConfigError
        If the directory has no table of one.
    """
    table = comparison / "table.csv"
    if not table.is_file():
        raise ConfigError(f"{comparison} is no comparison's directory: {table.name} is missing.")
    with table.open(newline="") as file:
        for line in csv.DictReader(file):
            if line["completed"] == "true":
                own = {
                    "up": str(int(line["bytes_up"]) / 1e6),
                    "seconds": line["seconds_devices"],
                    "alarms": line["false_alarms"],
                }
                yield _run(group, line["variant"], line | own)


def _run(group: str, row: str, line: Mapping[str, str]) -> Run:
    figures = (f.name for f in fields(Run) if f.type == "float")
    numbers = {name: float(line[name] or "nan") for name in figures}
    return Run(group, row, int(line["seed"]), **numbers)


def merged(old: Sequence[Run], new: Iterable[Run]) -> list[Run]:
    """Return all runs, a new one instead of an old one of its row and seed; groups and rows stay together."""
    by_key = {(run.group, run.row, run.seed): run for run in [*old, *new]}
    groups = list(dict.fromkeys(group for group, _, _ in by_key))
    rows = list(dict.fromkeys((group, row) for group, row, _ in by_key))
    order = lambda key: (groups.index(key[0]), rows.index(key[:2]), key[2])  # noqa: E731
    return [by_key[key] for key in sorted(by_key, key=order)]


def as_csv(runs: Sequence[Run]) -> str:
    """Return the runs as CSV, four digits of a figure; NaN is empty."""
    head = [f.name for f in fields(Run)]
    return csv_text(head, ([_cell(value) for value in astuple(run)] for run in runs))


def _cell(value: str | int | float) -> str:
    if not isinstance(value, float):
        return str(value)
    return "" if math.isnan(value) else f"{value:.4g}"


def tables(runs: Sequence[Run]) -> str:
    """Return a table a group, in Markdown: accuracy, each seed's, MB, seconds and what an audit found."""
    parts = []
    for group, rows in _by_row(runs).items():
        head = ("row", "accuracy", "each seed's", "MB up", "site seconds", "found (alarms)")
        seeds = sorted({run.seed for own in rows.values() for run in own})
        body = [head, ("---",) * len(head), *(_line(row, own) for row, own in rows.items())]
        cells = "\n".join("| " + " | ".join(line) + " |" for line in body)
        parts.append(f"**{group}**, seeds {', '.join(map(str, seeds))}:\n\n{cells}")
    return "\n\n".join(parts)


def _line(row: str, own: Sequence[Run]) -> tuple[str, ...]:
    found, alarms = _mean(own, "found"), _mean(own, "alarms")
    spread = f" ± {statistics.stdev(r.accuracy for r in own):.4f}" if len(own) > 1 else ""
    return (
        row,
        f"{_mean(own, 'accuracy'):.4f}{spread}",
        "  ".join(f"{run.accuracy:.4f}" for run in own),
        f"{_mean(own, 'up'):.3g}",
        _NOTHING if math.isnan(seconds := _mean(own, "seconds")) else f"{seconds:.0f}",
        _NOTHING if math.isnan(found) else f"{100 * found:.1f} % ({100 * alarms:.1f})",
    )


def _by_row(runs: Sequence[Run]) -> dict[str, dict[str, list[Run]]]:
    found: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        found.setdefault(run.group, {}).setdefault(run.row, []).append(run)
    return found


def _mean(runs: Sequence[Run], figure: str) -> float:
    """Return the mean of a figure over the runs that have it; NaN of none."""
    values = [value for run in runs if not math.isnan(value := getattr(run, figure))]
    return statistics.fmean(values) if values else math.nan


def draw(runs: Sequence[Run], images: Path, name: str) -> None:
    """Draw mean accuracy against each figure, a mark a row with the range of its seeds."""
    rows = [(row, own) for rows in _by_row(runs).values() for row, own in rows.items()]
    for plot in PLOTS:
        series = [
            Series(
                row,
                [x * plot.scale],
                [_mean(own, "accuracy")],
                [min(run.accuracy for run in own)],
                [max(run.accuracy for run in own)],
            )
            for row, own in rows
            if not math.isnan(x := _mean(own, plot.figure)) and (x > 0 or not plot.log_x)
        ]
        figure = lines(
            series, title="", x_label=plot.x_label, y_label="test accuracy", log_x=plot.log_x
        )
        save(figure, images / f"{name}-{plot.name}.svg")


def page(text: str, runs: Sequence[Run]) -> str:
    """Return a page with its tables instead of those that it has.

    Raises
    ------
    ConfigError
        If the page has no marks for them.
    """
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ConfigError(f"the page has no place for the tables: put {BEGIN} and {END} into it.")
    return f"{head}{BEGIN}\n\n{tables(runs)}\n\n{END}{tail}"


def main() -> int:
    """Take up what is named, then write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.standings", description=__doc__)
    parser.add_argument("csv", type=Path, help="docs/results/NAME.csv")
    parser.add_argument("comparisons", nargs="*", metavar="GROUP=COMPARISON")
    asked = parser.parse_args()
    pairs = [word.rpartition("=")[::2] for word in asked.comparisons]
    if bad := [directory for group, directory in pairs if not group]:
        parser.error(f"{bad[0]!r} names no group: write GROUP=COMPARISON")
    try:
        new = [run for group, found in pairs for run in taken_up(group, Path(found))]
        runs = merged(read(asked.csv), new)
        text = page(asked.csv.with_suffix(".md").read_text(), runs)
    except (ConfigError, OSError) as error:
        parser.error(str(error))
    write_text(asked.csv, as_csv(runs))
    write_text(asked.csv.with_suffix(".md"), text)
    draw(runs, asked.csv.parent.parent / "images", asked.csv.stem)
    return 0


if __name__ == "__main__":
    sys.exit(main())
