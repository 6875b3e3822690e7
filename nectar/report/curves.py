"""Curves and tables of figures: accuracy and loss of one run, and of several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pandas import DataFrame, concat

from common.settings.sections import MEASURES
from nectar.charts import UNIT, Series, inline_svg, lines
from nectar.records.record import over_classes
from nectar.report.view import View, groups, judged_by
from nectar.text import MISSING, Cell, Table, capital, number, share, size

_SHOWN = {"test": "test", "validation": "validation", "sites": "sites' own data"}
_UP = f"{UNIT} sent by all sites so far"
#: totals that differ by more than this factor are drawn on a logarithmic axis
_FAR_APART = 8


class Charts(NamedTuple):
    """Charts as SVG: those that are shown, and others, folded under a title."""

    shown: list[str]
    title: str
    folded: list[str]


def of_run(view: View) -> Charts:
    """Draw one run's figures, wherever they were taken; those by bytes, mostly of the same shape, are folded."""
    drawn: dict[str, list[str]] = {"round": [], _UP: []}
    for figure in dict.fromkeys((view.measure, "accuracy", "loss")):
        tracks = {name: view.track(f"{of}.{figure}") for of, name in _SHOWN.items()}
        if figure == view.measure:
            tracks["worst site"] = view.over_sites("worst")
        there = {name: y.tolist() for name, y in tracks.items() if y.notna().any()}
        for axis, charts in drawn.items():
            x = _x(view, axis)
            series = [Series(name, x, y) for name, y in there.items()]
            charts += _chart(view.record.id, figure, axis, series)
    return Charts(drawn["round"], "By bytes sent", drawn[_UP])


def of_groups(views: Sequence[View]) -> Charts:
    """Draw the groups' means with the band from the lowest to the highest seed; the loss is folded."""
    of, measure = judged_by(views), common_measure(views)
    totals = [up for view in views if (up := view.frame["up"].sum()) > 0]
    log_x = bool(totals) and max(totals) > _FAR_APART * min(totals)
    drawn: dict[str, list[str]] = {measure: [], "loss": []}
    for figure, charts in drawn.items():
        for axis in ("round", _UP):
            means = [
                _mean(name, members, f"{of}.{figure}", axis)
                for name, members in groups(views).items()
            ]
            some = [one for one in means if len(one.x)]
            charts += _chart("all runs", figure, axis, some, log_x=log_x and axis == _UP)
    return Charts(drawn[measure], "Loss", drawn["loss"])


def common_measure(views: Sequence[View]) -> str:
    """Return what all runs are judged by, accuracy where they differ."""
    found = {view.measure for view in views}
    return found.pop() if len(found) == 1 else "accuracy"


def side_by_side(views: Sequence[View]) -> Table:
    """Compare the groups: the mean over seeds, its spread, and every seed's own figure."""
    of, measure = judged_by(views), common_measure(views)
    what = MEASURES[measure]
    rows: list[list[Cell]] = []
    for name, members in groups(views).items():
        final = [view.last_figures(of) for view in members]
        seeds = ", ".join(
            f"{view.settings.get('seed')}: {share(one.get(measure))}{over_classes(one)}"
            f"{'' if view.record.completed else ' (unfinished)'}"
            for view, one in zip(members, final, strict=True)
        )
        runs = DataFrame(
            {
                "measure": [number(one.get(measure)) for one in final],
                "reached": [view.reached for view in members],
                "up": [view.frame["up"].sum() for view in members],
            }
        )
        reached = dict.fromkeys((runs["reached"].min(), runs["reached"].max()))
        rows.append(
            [
                name,
                share(runs["measure"].mean()),
                share(runs["measure"].std()),
                " to ".join(map(str, reached)),
                size(round(runs["up"].mean())),
                (seeds, "words"),
            ]
        )
    head: list[Cell] = ["runs", what, "std over seeds", "rounds", "up in all"]
    head.append((f"seed: {what}", "left"))
    if all(row[2] == MISSING for row in rows):
        head, *rows = ([*row[:2], *row[3:]] for row in (head, *rows))
    where = "test set" if of == "test" else "the sites' own data"
    caption = f"{capital(what)} after the last round, {where}"
    if len(by := dict.fromkeys(MEASURES[view.measure] for view in views)) > 1:
        caption += f"; the runs are judged by {' and '.join(by)}, which cannot share a column"
    return Table(caption, head, rows)


def classes_side_by_side(views: Sequence[View]) -> Table | None:
    """Compare the accuracy by class, where all runs have the same classes."""
    columns = {}
    for name, members in groups(views).items():
        found = [
            view.last_figures("test").get("per_class") for view in members if view.record.rounds
        ]
        if any(view.classes != views[0].classes for view in members) or not all(found or [None]):
            return None
        columns[name] = DataFrame(found, dtype=float).mean().map(share)
    rows = [*zip(views[0].classes, *columns.values(), strict=True)]
    return Table("Test accuracy by class, mean over seeds", ["class", *columns], rows)


def _mean(name: str, members: Sequence[View], figure: str, axis: str) -> Series:
    """Average over the seeds, in the rounds that all of them reached."""
    points = [
        DataFrame({"x": _x(view, axis), "y": view.track(figure), "round": view.frame["round"]})
        for view in members
    ]
    by_round = concat(points).dropna().groupby("round")
    found = by_round.agg(
        n=("y", "size"), x=("x", "mean"), y=("y", "mean"), low=("y", "min"), high=("y", "max")
    )
    found = found[found["n"] == len(members)]
    _, x, y, low, high = (found[column].tolist() for column in found)
    if len(members) == 1:
        return Series(name, x, y)
    return Series(f"{name} ({len(members)} seeds)", x, y, low, high)


def _x(view: View, axis: str) -> list[float]:
    """Return each line's place on an axis: its round, or the bytes that all sites had sent by then."""
    rounds, sent = view.frame["round"].astype(float), view.frame["up"].cumsum()
    return list(rounds if axis == "round" else sent)


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
