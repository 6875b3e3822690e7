"""Accuracy and loss, against rounds and against what the sites sent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from nectar.charts import UNIT, Series, inline_svg, lines
from nectar.report.html import Markup, h
from nectar.report.text import number, total
from nectar.report.view import View, groups, judged_by

_SHOWN = {"test": "test", "validation": "validation", "sites": "sites' own data"}
_UP = f"{UNIT} sent by all sites so far"
#: totals further apart than this are drawn on a logarithmic axis
_FAR_APART = 8


def of_run(view: View) -> Markup:
    """Draw one run's figures, wherever they were taken; those by bytes, mostly of the same shape, are folded."""
    rounds = [float(line["round"]) for line in view.lines]
    sent = sent_so_far(view)
    by_round: list[Markup | None] = []
    by_bytes: list[Markup | None] = []
    for figure in ("accuracy", "loss"):
        tracks = {name: _values(view.lines, of, figure) for of, name in _SHOWN.items()}
        there = {name: y for name, y in tracks.items() if not all(map(math.isnan, y))}
        for charts, axis, x in ((by_round, "round", rounds), (by_bytes, _UP, sent)):
            series = [Series(name, x, y) for name, y in there.items()]
            charts.append(_chart(view.past.record.id, figure, axis, series, log_x=False))
    return _side_by_side(by_round, "By bytes sent", by_bytes)


def of_groups(views: Sequence[View]) -> Markup:
    """Draw the groups' means with the band from the lowest to the highest seed; the loss is folded."""
    of = judged_by(views)
    named = groups(views)
    totals = [up for view in views for up in sent_so_far(view)[-1:] if up > 0]
    log_x = bool(totals) and max(totals) > _FAR_APART * min(totals)
    accuracy: list[Markup | None] = []
    loss: list[Markup | None] = []
    for charts, figure in ((accuracy, "accuracy"), (loss, "loss")):
        for axis in ("round", _UP):
            series = [
                _mean(name, members, of, figure, against_bytes=axis == _UP)
                for name, members in named.items()
            ]
            drawn = [one for one in series if len(one.x)]
            charts.append(_chart("all runs", figure, axis, drawn, log_x=log_x and axis == _UP))
    return _side_by_side(accuracy, "Loss", loss)


def sent_so_far(view: View) -> list[float]:
    """Return the bytes that all sites had sent after each line."""
    ups = [total(line.get("bytes", {}).get("up", {})) for line in view.lines]
    return list(accumulate(ups))


def _mean(
    name: str, members: Sequence[View], of: str, figure: str, *, against_bytes: bool
) -> Series:
    """Average over the seeds, in the rounds that all of them reached."""
    tracks = [
        {
            line["round"]: (up if against_bytes else float(line["round"]), value)
            for line, up, value in zip(
                view.lines, sent_so_far(view), _values(view.lines, of, figure), strict=True
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


def _values(rows: Sequence[Mapping[str, Any]], of: str, figure: str) -> list[float]:
    return [number((line.get(of) or {}).get(figure)) for line in rows]


def _chart(
    where: str, figure: str, axis: str, series: Sequence[Series], *, log_x: bool
) -> Markup | None:
    if not series:
        return None
    against = "round" if axis == "round" else "bytes sent"
    label = f"{where}: {figure} by {against}"
    drawn = lines(
        series,
        title=f"{figure.capitalize()} by {against}",
        x_label=axis,
        y_label=figure,
        log_x=log_x,
    )
    return h("div", Markup(inline_svg(drawn, label=label)), class_="chart")


def _side_by_side(
    charts: Sequence[Markup | None], folded: str, others: Sequence[Markup | None]
) -> Markup:
    shown, hidden = list(filter(None, charts)), list(filter(None, others))
    if not shown:
        return h("p", "No accuracy or loss is on record.")
    below = (
        h("details", h("summary", folded), h("div", *hidden, class_="charts")) if hidden else None
    )
    return h("div", h("div", *shown, class_="charts"), below)
