"""The report as a page: jinja2 templates filled from views of one or several runs, one file that loads nothing.

`page` returns it, `write` writes it for records. Whatever comes from a record is escaped; what is markup already are
charts of our own alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from common.config.user_parts import ImportPolicy
from common.errors import ConfigError
from common.settings.sections import MEASURES
from common.storage.files import write_text
from nectar.charts import UNIT, Series, inline_svg, lines
from nectar.records.record import RunRecord, over_classes
from nectar.report.tables import Cell, ReportTable
from nectar.report.view import View, groups, judged_by
from nectar.text import MISSING, capital, is_number, number, plural, share, size, total

#: bytes of pictures that all runs of a page may take
PICTURES = 8_000_000

REFRESH = 10
"""Seconds after which a browser loads the page of a run that is going on again."""

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""What a browser lets the page do: show pictures that are in it."""

_TEMPLATES = Path(__file__).with_name("templates")

COLOURS = (_TEMPLATES / "colours.css").read_text(encoding="utf-8")
"""Colours by role, of a page or of a drawing that stands alone."""


def follow(
    directories: Sequence[Path], policy: ImportPolicy, to: Path, *, images: bool = True
) -> None:
    """Write the report on the runs in ``directories`` to ``to``, anew whenever one has changed, until all have ended.

    A browser loads the page again by itself as long as a run is going on.
    """
    known = None
    while True:
        runs = [RunRecord.open(directory, policy) for directory in directories]
        going = any(run.outcome == "running" for run in runs)
        state = [(run.outcome, len(run.rounds)) for run in runs]
        if state != known:
            write(runs, to, "--output", images=images, refresh=REFRESH if going else 0)
            known = state
        if not going:
            return
        time.sleep(REFRESH / 2)


def write(
    runs: Sequence[RunRecord], to: Path, named: str, *, images: bool = True, refresh: int = 0
) -> None:
    """Write the report on ``runs`` to ``to``; ConfigError if it cannot be written there."""
    text = page_of(runs, images=images, refresh=refresh)
    try:
        write_text(to, text)
    except OSError as error:
        raise ConfigError(
            f"{to} cannot be written ({error.strerror}): choose another place with {named}."
        ) from None


def page_of(runs: Sequence[RunRecord], *, images: bool = True, refresh: int = 0) -> str:
    """Return the report on ``runs``, with ``images`` or without; a browser loads it again after ``refresh`` seconds.

    Raises
    ------
    ConfigError
        Before any work, if a record names what may not be imported.
    """
    views = [View(run) for run in runs]
    for view in views:
        _ = view.method, view.config
    return page(views, images=images, refresh=refresh)


def page(views: Sequence[View], *, images: bool = True, refresh: int = 0) -> str:
    """Return the report on one or several runs as an HTML document that loads nothing."""
    picture_bytes = PICTURES // len(views) if images else None
    runs = [page_values(view, picture_bytes) for view in views]
    if len(views) == 1:
        return render("page.html", title=views[0].title, runs=runs, refresh=refresh)
    return render(
        "page.html",
        title=f"{len(views)} runs side by side",
        runs=runs,
        refresh=refresh,
        together=side_by_side(views),
        charts=of_groups(views),
        by_class=classes_side_by_side(views),
    )


def page_values(view: View, picture_bytes: int | None) -> dict[str, Any]:
    """Return what the page shows of one run, by the names that its template has for it; None: no pictures."""
    from common.wire.images import Copies
    from nectar.audit.images import examining as outcome
    from nectar.report import pictures, privacy, tables

    return {
        "view": view,
        "tables": tables,
        "privacy": privacy,
        "copies": Copies.recorded(view.rounds),
        "charts": of_run(view),
        "images": pictures.Images("The images were left out of this page.")
        if picture_bytes is None
        else pictures.of_run(view, pictures.Budget(picture_bytes)),
        "heading": pictures.heading(view, 1),
        "audit": outcome,
    }


def render(template: str, **values: Any) -> str:
    """Return a template filled with values, which are escaped."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_visible,
    )
    css = COLOURS + (_TEMPLATES / "style.css").read_text(encoding="utf-8")
    made.globals |= {"css": css, "policy": POLICY, "missing": MISSING}
    made.filters |= {"share": share, "size": size, "plural": plural}
    return made


def _visible(value: Any) -> Any:
    """Return text in which what does not print, such as a change of direction, is shown as a replacement."""
    if not isinstance(value, str) or hasattr(value, "__html__") or value.isprintable():
        return value
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in value
    )


# ---- curves --------------------------------------------------------------------------------------
# Accuracy and loss, against rounds and against what the sites sent: of one run, and of several side by side.

_SHOWN = {"test": "test", "validation": "validation", "sites": "sites' own data"}
_UP = f"{UNIT} sent by all sites so far"
#: totals further apart than this are drawn on a logarithmic axis
_FAR_APART = 8


class Charts(NamedTuple):
    """Charts as SVG: those that are shown, and others, folded under a title."""

    shown: list[str]
    title: str
    folded: list[str]


def of_run(view: View) -> Charts:
    """Draw one run's figures, wherever they were taken; those by bytes, mostly of the same shape, are folded."""
    rounds = [float(line["round"]) for line in view.lines]
    drawn: dict[str, list[str]] = {"round": [], _UP: []}
    for figure in dict.fromkeys((view.measure, "accuracy", "loss")):
        tracks = {name: _values(view, of, figure) for of, name in _SHOWN.items()}
        if figure == view.measure:
            worst = zip(
                _values(view, "sites", "worst"), _values(view, "validation", "worst"), strict=True
            )
            tracks["worst site"] = [w if math.isnan(v) else v for w, v in worst]
        there = {name: y for name, y in tracks.items() if not all(map(math.isnan, y))}
        for axis, x in (("round", rounds), (_UP, sent_so_far(view))):
            series = [Series(name, x, y) for name, y in there.items()]
            drawn[axis] += _chart(view.record.id, figure, axis, series)
    return Charts(drawn["round"], "By bytes sent", drawn[_UP])


def of_groups(views: Sequence[View]) -> Charts:
    """Draw the groups' means with the band from the lowest to the highest seed; the loss is folded."""
    of, measure = judged_by(views), common_measure(views)
    totals = [up for view in views for up in sent_so_far(view)[-1:] if up > 0]
    log_x = bool(totals) and max(totals) > _FAR_APART * min(totals)
    drawn: dict[str, list[str]] = {measure: [], "loss": []}
    for figure, charts in drawn.items():
        for axis in ("round", _UP):
            by_bytes = axis == _UP
            series = [
                _mean(name, members, of, figure, by_bytes=by_bytes)
                for name, members in groups(views).items()
            ]
            some = [one for one in series if len(one.x)]
            charts += _chart("all runs", figure, axis, some, log_x=log_x and by_bytes)
    return Charts(drawn[measure], "Loss", drawn["loss"])


def common_measure(views: Sequence[View]) -> str:
    """Return what all runs are judged by, accuracy where they differ."""
    found = {view.measure for view in views}
    return found.pop() if len(found) == 1 else "accuracy"


def side_by_side(views: Sequence[View]) -> ReportTable:
    """Compare the groups: the mean over seeds, its spread, and every seed's own figure."""
    of, measure = judged_by(views), common_measure(views)
    rows: list[list[Cell]] = []
    for name, members in groups(views).items():
        final = [(v.lines[-1].get(of) or {}) if v.lines else {} for v in members]
        values = [number(one[measure]) for one in final if is_number(one.get(measure))]
        seeds = ", ".join(
            f"{view.settings.get('seed')}: {share(one.get(measure))}{over_classes(one)}"
            f"{'' if view.record.completed else ' (unfinished)'}"
            for view, one in zip(members, final, strict=True)
        )
        reached = sorted({view.reached for view in members})
        up = size(round(mean((sent_so_far(view) or [0])[-1] for view in members)))
        rows.append(
            [
                name,
                share(mean(values)) if values else MISSING,
                f"{stdev(values):.4f}" if len(values) > 1 else MISSING,
                " to ".join(str(r) for r in (reached[0], reached[-1])[: len(reached)]),
                up,
                (seeds, "words"),
            ]
        )
    where = "test set" if of == "test" else "the sites' own data"
    what = MEASURES[measure]
    over = any(row[2] != MISSING for row in rows)
    rows = rows if over else [[*row[:2], *row[3:]] for row in rows]
    head: list[Cell] = ["runs", what, *["std over seeds"] * over, "rounds", "up in all"]
    caption = f"{capital(what)} after the last round, {where}"
    if len(by := dict.fromkeys(MEASURES[view.measure] for view in views)) > 1:
        caption += f"; the runs are judged by {' and '.join(by)}, which go into no column together"
    return ReportTable(caption, [*head, (f"seed: {what}", "left")], rows)


def classes_side_by_side(views: Sequence[View]) -> ReportTable | None:
    """Compare the accuracy by class, where all runs have the same classes."""
    named = groups(views)
    classes = views[0].classes
    columns = []
    for members in named.values():
        found = [
            (view.lines[-1].get("test") or {}).get("per_class") for view in members if view.lines
        ]
        if any(view.classes != classes for view in members) or not all(found) or not found:
            return None
        known = [[float(v) for v in each if is_number(v)] for each in zip(*found, strict=True)]
        columns.append([share(mean(each)) if each else MISSING for each in known])
    rows = [[name, *cells] for name, *cells in zip(classes, *columns, strict=True)]
    return ReportTable("Test accuracy by class, mean over seeds", ["class", *named], rows)


def sent_so_far(view: View) -> list[float]:
    """Return the bytes that all sites had sent after each line."""
    ups = [total(line.get("bytes", {}).get("up", {})) for line in view.lines]
    return list(accumulate(ups))


def _mean(name: str, members: Sequence[View], of: str, figure: str, *, by_bytes: bool) -> Series:
    """Average over the seeds, in the rounds that all of them reached."""
    tracks: list[Mapping[Any, tuple[float, float]]] = [
        {
            line["round"]: (up if by_bytes else float(line["round"]), value)
            for line, up, value in zip(
                view.lines, sent_so_far(view), _values(view, of, figure), strict=True
            )
            if not math.isnan(value)
        }
        for view in members
    ]
    shared = sorted(set.intersection(*(set(track) for track in tracks)))
    points = [[track[r] for track in tracks] for r in shared]
    values = [[value for _, value in point] for point in points]
    several = len(members) > 1
    return Series(
        f"{name} ({len(members)} seeds)" if several else name,
        [sum(x for x, _ in point) / len(point) for point in points],
        [sum(each) / len(each) for each in values],
        [min(each) for each in values] if several else None,
        [max(each) for each in values] if several else None,
    )


def _values(view: View, of: str, figure: str) -> list[float]:
    return [number((line.get(of) or {}).get(figure)) for line in view.lines]


def _chart(
    where: str, figure: str, axis: str, series: Sequence[Series], *, log_x: bool = False
) -> list[str]:
    """Return the chart, none without a series."""
    if not series:
        return []
    against = "round" if axis == "round" else "bytes sent"
    what = MEASURES.get(figure, figure)
    title = f"{capital(what)} by {against}"
    drawn = lines(series, title=title, x_label=axis, y_label=what, log_x=log_x)
    return [inline_svg(drawn, label=f"{where}: {what} by {against}")]
