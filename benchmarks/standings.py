"""Rankings of the methods: comparisons into one CSV, and from that a page's tables and plots.

``python -m benchmarks.standings docs/results/NAME.csv [GROUP=COMPARISON...]`` takes up the runs of comparisons, each
the directory that ``nectar compare`` wrote, instead of what the file had of the same row and seed; then it writes
the tables between the marks of ``NAME.md`` and the plots into ``docs/images``. Without a comparison it only writes.

A page called ``leaderboard`` has one ranking a data set instead.

``python -m benchmarks.standings --worth COMPARISON...`` takes up the runs of ``nectar compare table=worth`` instead, a
column's directory each, into the curve from which pages and reports compute what an accuracy is worth.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.named_points import Point, chart
from common.config.resolved import Config
from common.errors import ConfigError
from common.storage.files import csv_text, write_text
from nectar.charts import inline_svg
from nectar.comparison.paper_table import read_paper_table
from nectar.records.record import RunRecord
from nectar.report.page import COLOURS
from nectar.report.privacy import guarantee
from nectar.report.view import View

BEGIN, END = "<!-- standings: written by benchmarks/standings.py -->", "<!-- /standings -->"
_NOTHING = "–"


@dataclass(frozen=True)
class Run:
    """A run's figures; NaN where one was not measured.

    Parameters
    ----------
    accuracy : float
        After the last round, on the test images.
    up : float
        MB that all sites sent.
    seconds : float
        Seconds that all sites computed, of a run that had the machine to itself.
    found, alarms : float
        Shares of members, and of controls, that the strongest attack of `nectar audit images` takes for members.
    epsilon : float
        The largest of a site's, where all that is sent is covered.
    labelled : str
        Labelled images at the server, from which it learned; with a dagger those by which settings were chosen.
    method, chosen, real : str
        The method; the settings that a search chose; whether real examples are sent, in a word. On a leaderboard alone.
    commit, date, hardware : str
        Of which code, when and on what. On a leaderboard alone.
    """

    group: str
    row: str
    seed: int
    accuracy: float
    up: float
    seconds: float = math.nan
    found: float = math.nan
    alarms: float = math.nan
    epsilon: float = math.nan
    labelled: str = ""
    method: str = ""
    chosen: str = ""
    real: str = ""
    commit: str = ""
    date: str = ""
    hardware: str = ""


ABOUT = ("method", "chosen", "real", "commit", "date", "hardware")
"""What only a leaderboard says of a run."""

_KINDS = {
    "no": "no real image",
    "means of it": "means of real images",
    "begun from it": "images started from real ones",
    "yes": "real images",
}
"""What a leaderboard's colours mean: what is sent; in other plots they mark groups."""

BOUNDS = ("central", "local", "server", "the server alone")
"""Rows that a plot shows as lines: all data in one place, no exchange, the server's own images."""

_MARGIN = 0.01
"""How much more accurate a row of more bytes is that a plot names."""

_HEAD = ("row", "accuracy", "worth", "labels at the server")

_UNMEASURED = ("Fashion-MNIST", "FEMNIST")
"""How groups begin whose data set has no curve."""


@dataclass(frozen=True)
class Plot:
    """One plot: what is at its x axis, and how."""

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


def taken_up(group: str, comparison: Path, *, about: bool = False) -> Iterator[Run]:
    """Yield a comparison's completed runs, with ``about`` what records and table say; ConfigError without a table."""
    table = comparison / "table.csv"
    if not table.is_file():
        raise ConfigError(f"{comparison} is no comparison's directory: {table.name} is missing.")
    chosen = _chosen(json.loads((comparison / "compare.json").read_text())) if about else {}
    with table.open(newline="") as file:
        for line in csv.DictReader(file):
            if line["completed"] == "true":
                own = {
                    "up": str(int(line["bytes_up"]) / 1e6),
                    "seconds": line["seconds_devices"],
                    "alarms": line["false_alarms"],
                }
                # what was sent in other rounds would add to what was found
                if line.get("audited_in_part") == "true":
                    own |= {"found": "", "alarms": ""}
                if about:
                    own |= _about(Path(line["record"]), chosen.get(line["variant"], ()))
                if record := line.get("record"):
                    own["labelled"] = labelled(RunRecord.open(Path(record)))
                yield _run(group, line["variant"], line | own)


def _run(group: str, row: str, line: Mapping[str, str]) -> Run:
    figures = (f.name for f in fields(Run) if f.type == "float")
    # as many digits as the CSV keeps, so that a page is the same from a comparison and from the file
    numbers = {n: float(f"{float(line[n]):.4g}") if line.get(n) else math.nan for n in figures}
    words = {name: line.get(name, "") if "commit" in line else "" for name in ABOUT}
    words["labelled"] = line.get("labelled", "")
    return Run(group, row, int(line["seed"]), **numbers, **words)


def labelled(past: RunRecord) -> str:
    """Return how many labelled images of the server's a run learned from or was evaluated on, without the test set."""
    last, data = past.rounds[-1], past.config.data
    judged = {} if data.validated_at_sites else last.get("validation") or {}
    return str(last.get("notes", {}).get("trained_on", judged.get("examples", 0)))


def _chosen(comparison: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """Return what was chosen for each row: by the table that was compared, or by the comparison's own searches."""
    words = shlex.split(comparison["command"])
    tables = [word.removeprefix("table=") for word in words if word.startswith("table=")]
    stated = {row.label: row.chosen for name in tables for row in read_paper_table(name).rows}
    searched = {r: one["chosen"] for one in comparison["searches"] for r in one["rows"]}
    return stated | searched


def _about(record: Path, chosen: Sequence[str]) -> dict[str, str]:
    """Return what a leaderboard says of a run, from its record."""
    past = RunRecord.open(record)
    held, machine = guarantee(View(past)), past.provenance["hardware"]
    own = f"{past.config.section}."
    return {
        "method": past.config.method,
        "chosen": " ".join(setting.removeprefix(own) for setting in chosen),
        "real": sends_real(past.config),
        "epsilon": "" if held is None else str(held.epsilon),
        "commit": _commit(),
        "date": past.provenance["started"][:10],
        "hardware": f"{machine['cores']} cores of {machine['machine']}",
    }


def sends_real(config: Config) -> str:
    """Return whether sites send real examples, by what the method and those inside it disclose."""
    disclosures = [one for s in config.methods.values() if (one := s.disclosure()) is not None]
    if any(one.unchanged for one in disclosures):
        return "yes"
    if any(one.began_as == "real examples" for one in disclosures):
        return "begun from it"
    means = any(one.began_as == "class means" or (one.images and one.update) for one in disclosures)
    return "means of it" if means else "no"


def _commit() -> str:
    line = ["git", "-C", str(Path(__file__).parent), "log", "-1", "--format=%h"]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()


def merged(old: Sequence[Run], new: Iterable[Run]) -> list[Run]:
    """Return all runs, a new one instead of an old one of its row and seed; groups and rows stay together."""
    by_key = {(run.group, run.row, run.seed): run for run in [*old, *new]}
    groups = list(dict.fromkeys(group for group, _, _ in by_key))
    rows = list(dict.fromkeys((group, row) for group, row, _ in by_key))
    order = lambda key: (groups.index(key[0]), rows.index(key[:2]), key[2])  # noqa: E731
    return [by_key[key] for key in sorted(by_key, key=order)]


def as_csv(runs: Sequence[Run]) -> str:
    """Return the runs as CSV, four digits of a figure; NaN is empty, and a leaderboard's columns are one's alone."""
    left_out = [] if is_board(runs) else ["epsilon", *ABOUT]
    left_out += [] if any(run.labelled for run in runs) else ["labelled"]
    head = [f.name for f in fields(Run) if f.name not in left_out]
    return csv_text(head, ([_cell(getattr(run, name)) for name in head] for run in runs))


def is_board(runs: Sequence[Run]) -> bool:
    """Return whether these are a leaderboard's runs."""
    return any(run.method for run in runs)


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return "" if math.isnan(value) else f"{value:.4g}"


def tables(runs: Sequence[Run]) -> str:
    """Return a table a group, in Markdown: accuracy, each seed's, MB, seconds and what an audit found."""
    if is_board(runs):
        return "\n\n".join(_board(group, rows) for group, rows in _by_row(runs).items())
    parts = []
    for group, rows in _by_row(runs).items():
        head = (*_HEAD, "each seed's", "MB up", "site seconds", "found (alarms)")
        seeds = sorted({run.seed for own in rows.values() for run in own})
        lines = (_line(group, row, own) for row, own in rows.items())
        body = [head, ("---",) * len(head), *lines]
        cells = "\n".join("| " + " | ".join(line) + " |" for line in body)
        message = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
        parts.append(f"**{group}**, {message}:\n\n{cells}")
    return "\n\n".join(parts)


def ranked(rows: Mapping[str, Sequence[Run]]) -> list[str]:
    """Return the rows, the best first."""
    return sorted(rows, key=lambda row: -_mean(rows[row], "accuracy"))


def named(rows: Mapping[str, Sequence[Run]]) -> set[str]:
    """Return the rows that a plot names: a point or more above all with fewer bytes, or a method with its defaults."""
    found, best = {row for row in rows if row == rows[row][0].method}, 0.0
    for row in sorted(ranked(rows), key=lambda row: _mean(rows[row], "up")):
        if (mean := _mean(rows[row], "accuracy")) >= best + _MARGIN:
            found.add(row)
            best = mean
    return found


def _board(group: str, rows: Mapping[str, Sequence[Run]]) -> str:
    """Return a group of a leaderboard: its plot, its table, and of which code it is."""
    runs = [run for own in rows.values() for run in own]
    plot = f"![Test accuracy against megabytes sent, {group}](../images/leaderboard-{_file(group)}.svg)"
    of = {name: sorted({getattr(run, name) for run in runs}) for name in ABOUT[3:]}
    seeds = sorted({run.seed for run in runs})
    measured = (
        f"Seeds {', '.join(map(str, seeds))}. Code of {', '.join(of['commit'])}; {', '.join(of['date'])}; "
        f"{', '.join(of['hardware'])}."
    )
    return "\n\n".join([f"## {group}", plot, _ranking(group, rows), measured])


def _ranking(group: str, rows: Mapping[str, Sequence[Run]]) -> str:
    head = ("row", "accuracy", "worth", "MB up", "the server's labels", "members found")
    seeds = {run.seed for own in rows.values() for run in own}
    body = []
    for row in ranked(rows):
        own = rows[row]
        ran = {run.seed for run in own}
        name = row if row == own[0].method else f"{row} (`{own[0].method}`)"
        worth_, labelled_ = _worth(group, own)
        body.append(
            (
                name + ("" if ran == seeds else f", seed {', '.join(map(str, sorted(ran)))}"),
                _accuracy(own, digits=3),
                worth_,
                f"{_mean(own, 'up'):.3g}",
                use_of(labelled_),
                _found(own),
            )
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ("---",) * len(head), *body))


def use_of(labelled_: str) -> str:
    """Return in words what labelled images at the server were for."""
    if labelled_ in ("", "0", _NOTHING):
        return "none"
    return "for settings" if labelled_.endswith("†") else f"{labelled_}, to learn from"


def _file(group: str) -> str:
    return group.lower().replace(" ", "-")


def _seconds(own: Sequence[Run]) -> str:
    seconds = _mean(own, "seconds")
    return _NOTHING if math.isnan(seconds) else f"{seconds:.0f}"


def _accuracy(own: Sequence[Run], digits: int = 4) -> str:
    spread = statistics.stdev(r.accuracy for r in own) if len(own) > 1 else math.nan
    end = "" if math.isnan(spread) else f"&nbsp;±&nbsp;{spread:.{digits}f}"  # one line of a cell
    return f"{_mean(own, 'accuracy'):.{digits}f}{end}"


def _worth(group: str, own: Sequence[Run]) -> tuple[str, str]:
    """Return how many labelled images at the server a row is worth, and how many it had there."""
    name = "digits" if group == "digits" else "cifar10"
    curve = {} if group.startswith(_UNMEASURED) else curve_of(name)
    return worth(_mean(own, "accuracy"), curve) or _NOTHING, own[0].labelled or _NOTHING


def _line(group: str, row: str, own: Sequence[Run]) -> tuple[str, ...]:
    return (
        row,
        _accuracy(own),
        *_worth(group, own),
        "  ".join(f"{run.accuracy:.4f}" for run in own),
        f"{_mean(own, 'up'):.3g}",
        _seconds(own),
        _found(own),
    )


def _found(own: Sequence[Run]) -> str:
    found, alarms = _mean(own, "found"), _mean(own, "alarms")
    return _NOTHING if math.isnan(found) else f"{100 * found:.1f} % ({100 * alarms:.1f})"


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
    """Draw mean accuracy against each figure, a mark a row with the range of its seeds.

    Of a leaderboard MB alone, a plot a group, in which the bounds are lines. A group ``SET: WHAT`` is of other data
    than the page's, and is in its tables alone.
    """
    groups = _by_row(runs)
    if is_board(runs):
        for group, rows in groups.items():
            own = {row: its for row, its in rows.items() if row not in BOUNDS}
            levels = {row: _mean(its, "accuracy") for row, its in rows.items() if row not in own}
            _plot(PLOTS[0], own, images / f"{name}-{_file(group)}.svg", levels, named(own))
        return
    every = {
        f"{group}\0{row}": own
        for group, rows in groups.items()
        if ":" not in group
        for row, own in rows.items()
    }
    for plot in PLOTS:
        _plot(plot, every, images / f"{name}-{plot.name}.svg", {})


def _plot(
    plot: Plot,
    rows: Mapping[str, Sequence[Run]],
    to: Path,
    levels: Mapping[str, float],
    shown: Collection[str] | None = None,
) -> None:
    points = [
        Point(
            row.rpartition("\0")[2] if shown is None or row in shown else "",
            _KINDS.get(own[0].real, own[0].group),
            x * plot.scale,
            _mean(own, "accuracy"),
            min(run.accuracy for run in own),
            max(run.accuracy for run in own),
        )
        for row, own in rows.items()
        if not math.isnan(x := _mean(own, plot.figure)) and (x > 0 or not plot.log_x)
    ]
    known = list(_KINDS.values()) if levels else []
    figure = chart(
        points,
        list(dict.fromkeys([*known, *(point.kind for point in points)])),
        x_label=plot.x_label,
        y_label="test accuracy",
        log_x=plot.log_x,
        levels=levels,
    )
    drawn = inline_svg(figure, label=f"Test accuracy against {plot.x_label}")
    width, height = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn)[0]
    size = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}pt" height="{height}pt" '
    alone = drawn.replace("<svg ", size, 1).replace(">", f"><style>{COLOURS}</style>", 1)
    write_text(to, alone + "\n")  # light or dark, as the reader has it


def curve_csv(comparisons: Iterable[Path]) -> str:
    """Return worth.csv with the runs of ``comparisons`` instead of what it had of the same images and seed."""
    with FILE.open(newline="") as file:
        head, *old = csv.reader(file)
    found = {tuple(line[:3]): line[3] for line in old}
    for comparison in comparisons:
        with (comparison / "table.csv").open(newline="") as file:
            for line in csv.DictReader(file):
                config = RunRecord.open(Path(line["record"])).config
                images = line["variant"].partition(" ")[0]
                place = (config.dataset, images, line["seed"])
                found[place] = f"{float(line['accuracy']):.4f}"
    order = lambda place: (place[0], int(place[1]), int(place[2]))  # noqa: E731
    return csv_text(head, ((*place, found[place]) for place in sorted(found, key=order)))


def page(text: str, runs: Sequence[Run]) -> str:
    """Return a page with its tables instead of those that it has; ConfigError if the page has no marks for them."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ConfigError(f"the page has no place for the tables: put {BEGIN} and {END} into it.")
    return f"{head}{BEGIN}\n\n{tables(runs)}\n\n{END}{tail}"


def main() -> int:
    """Take up what is named, then write the page."""
    if sys.argv[1:2] == ["--worth"]:
        write_text(FILE, curve_csv(map(Path, sys.argv[2:])))
        return 0
    parser = argparse.ArgumentParser(prog="python -m benchmarks.standings", description=__doc__)
    parser.add_argument("csv", type=Path, help="docs/results/NAME.csv")
    parser.add_argument("comparisons", nargs="*", metavar="GROUP=COMPARISON")
    asked = parser.parse_args()
    pairs = [word.rpartition("=")[::2] for word in asked.comparisons]
    if bad := [directory for group, directory in pairs if not group]:
        parser.error(f"{bad[0]!r} names no group: write GROUP=COMPARISON")
    try:
        board = asked.csv.stem == "leaderboard"
        new = [r for group, at in pairs for r in taken_up(group, Path(at), about=board)]
        runs = merged(read(asked.csv), new)
        text = page(asked.csv.with_suffix(".md").read_text(), runs)
    except (ConfigError, OSError) as error:
        parser.error(str(error))
    write_text(asked.csv, as_csv(runs))
    write_text(asked.csv.with_suffix(".md"), text)
    draw(runs, asked.csv.parent.parent / "images", asked.csv.stem)
    return 0


# ---- worth ---------------------------------------------------------------------------------------
# How many labelled images at the server reach an accuracy alone, as ``method=server`` has measured: ``worth.csv`` has
# the curve of each data set and model, a line for each number of images and seed.

FILE = Path(__file__).with_name("worth.csv")

Curve = Mapping[int, float]
"""Mean accuracy by the number of labelled images, ascending."""


@cache
def curve_of(dataset: str) -> Curve:
    """Return the accuracy of a server without sites, by labelled images; empty if it was not measured."""
    found: dict[int, list[float]] = {}
    with FILE.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            if line["dataset"] == dataset:
                found.setdefault(int(line["images"]), []).append(float(line["accuracy"]))
    return {images: statistics.fmean(found[images]) for images in sorted(found)}


def worth(accuracy: float, curve: Curve) -> str:
    """Return the number of labelled images at which the curve reaches an accuracy, to two digits; empty without one.

    Between two points the accuracy goes with the logarithm of the number.
    """
    points = list(curve.items())
    if not points or math.isnan(accuracy):
        return ""
    before, low = points[0]
    if accuracy < low:
        return f"< {before:,}"
    for images, reached in points:
        if accuracy <= reached:
            way = (accuracy - low) / (reached - low) if reached > low else 1.0
            exact = math.exp(math.log(before) + way * math.log(images / before))
            return f"{round(exact, 1 - math.floor(math.log10(exact))):,.0f}"
        before, low = images, max(low, reached)
    return f"> {before:,}"


if __name__ == "__main__":
    sys.exit(main())
