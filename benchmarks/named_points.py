"""A chart of named points: a name is next to its point, clear of the other names, and colours mark kinds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox, BboxBase
from numpy.typing import NDArray

from nectar.charts import INK, LIGHT, lines, scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIZE, _LETTERS = (7.2, 5.4), 8
_MARKERS = ("o", "s", "^", "D")
#: points from a mark to its name, and how many rows above or below the mark the name may be
_GAP, _ROWS = 6, 24
#: how far the axis extends to the right of the last mark, relative to its length, so that names fit
_RIGHT = 0.28


@dataclass(frozen=True)
class Point:
    """A mark with its name, or with none; ``low`` and ``high`` end the bar through it."""

    name: str
    kind: str
    x: float
    y: float
    low: float
    high: float


def chart(
    points: Sequence[Point],
    kinds: Sequence[str],
    *,
    x_label: str,
    y_label: str,
    log_x: bool,
    levels: Mapping[str, float],
) -> Figure:
    """Draw the points, a colour and a marker for each of ``kinds``; each of ``levels`` is a line across."""
    figure = lines([], title="", x_label=x_label, y_label=y_label)
    figure.set_size_inches(_SIZE)
    (axes,) = figure.axes
    looks = {
        kind: (LIGHT[i % len(LIGHT)], _MARKERS[i % len(_MARKERS)]) for i, kind in enumerate(kinds)
    }
    for point in points:
        colour, marker = looks[point.kind]
        axes.vlines(point.x, point.low, point.high, color=colour, linewidth=1.0)
        axes.plot(point.x, point.y, marker, color=colour, markersize=5)
    for name, level in levels.items():
        axes.axhline(level, color=INK, linewidth=0.8, linestyle=":", zorder=1)
        at = axes.get_yaxis_transform()
        axes.text(1, level, name, transform=at, ha="right", va="bottom", color=INK)
    scale(axes, [point.x for point in points], log_x)
    axes.margins(x=0.03)
    _give_room(axes)
    there = [kind for kind in kinds if any(point.kind == kind for point in points)]
    signs = [Line2D([], [], color=looks[kind][0], marker=looks[kind][1], ls="") for kind in there]
    figure.legend(signs, there, loc="outside lower center", ncols=2, frameon=False, labelcolor=INK)
    figure.draw_without_rendering()  # the position of the axes is known only now
    figure.set_layout_engine("none")
    _name(axes, points)
    return figure


def _give_room(axes: Axes) -> None:
    to_line = axes.transScale.transform
    (left, _), (right, _) = (to_line((x, 0.5)) for x in axes.get_xlim())
    end = axes.transScale.inverted().transform((right + _RIGHT * (right - left), 0))[0]
    axes.set_xlim(right=end)


def _name(axes: Axes, points: Sequence[Point]) -> None:
    """Write each name at the place nearest to its point that is clear of marks and names."""
    per_point = axes.figure.dpi / 72
    marks = axes.transData.transform([(point.x, point.y) for point in points])
    taken = [Bbox([mark - 3 * per_point, mark + 3 * per_point]) for mark in marks]
    taken += [text.get_window_extent() for text in axes.texts]
    for point, mark in sorted(zip(points, marks, strict=True), key=lambda pair: -pair[0].y):
        if not point.name:
            continue
        text = axes.text(point.x, point.y, point.name, fontsize=_LETTERS)
        size = np.array(text.get_window_extent().size)
        text.remove()
        side, away, box = _clear(mark, size, per_point, axes.bbox, taken)
        taken.append(box)
        axes.annotate(
            point.name,
            (point.x, point.y),
            (away[0], away[1]),
            textcoords="offset points",
            ha="left" if side > 0 else "right",
            va="center",
            fontsize=_LETTERS,
            color=INK,
            arrowprops={"arrowstyle": "-", "color": INK, "linewidth": 0.4} if away[1] else None,
        )


def _clear(
    mark: NDArray[np.float64],
    size: NDArray[np.float64],
    per_point: float,
    within: BboxBase,
    taken: Sequence[BboxBase],
) -> tuple[int, NDArray[np.float64], Bbox]:
    """Return the side, the way from the mark in points and the box of a name; of a crowd without a place, the last."""
    for side, row in _places():
        away = np.array([side * _GAP * (1 + bool(row)), row * _LETTERS / 2])
        corner = mark + away * per_point - size * [side < 0, 0.5]
        box = Bbox([corner, corner + size])
        inside = within.contains(*box.min) and within.contains(*box.max)
        if inside and not box.count_overlaps(taken):
            break
    return side, away, box


def _places() -> Iterator[tuple[int, int]]:
    """Return sides, right before left, and half rows up from the mark, the nearest first."""
    rows = chain([0], *((row, -row) for row in range(1, 2 * _ROWS)))
    return ((side, row) for row in rows for side in (1, -1))
