"""Line charts that are read on paper and on screens, in light and dark, with and without colour vision."""

from __future__ import annotations

import hashlib
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from common.errors import ConfigError
from common.storage.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, PAPER, GRID = "#1a1b1c", "#ffffff", "#d7d8d9"

#: the lines' colours, at least 3:1 on white and distinguishable without colour vision; dark: colours.css
LIGHT = (
    "#0072b2",
    "#b84a00",
    "#007a5a",
    "#a6428a",
    "#8a6d00",
    "#2a7fb8",
    "#4d4d4d",
    "#6b4fbb",
)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))

#: markers a line shows at most, so that a long run stays a line
_MAX_MARKERS = 20

#: inches: narrow enough that a phone shows the text at about its own size
_WIDTH, _HEIGHT, _LEGEND_ROW = 4.8, 3.1, 0.22
#: names longer than this are placed one below the other
_LONG_NAME = 22
#: rows, and columns, of small boxes at the most
_MOST_BOXES = 12
#: inches that a letter of a name takes below a box
_LETTER = 0.075
_DPI = 160
_STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 10,
    "text.parse_math": False,  # names are a user's: a dollar sign is a dollar sign
    "svg.fonttype": "none",
    "svg.hashsalt": "nectar",
    "svg.id": None,
    "pdf.fonttype": 42,  # complete fonts, which journals require
    "figure.facecolor": PAPER,
    "figure.constrained_layout.use": True,
    "axes.facecolor": PAPER,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
}
#: what would say when, and by which release, a file was written
_SILENT: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
#: of a narrower range than this a logarithmic axis may have a single mark, and is not drawn
_NARROW = 5
#: a logarithmic axis of a wider range than this is marked at powers of ten only
_WIDE = 300
_SVG = "{http://www.w3.org/2000/svg}"
_HREF = "{http://www.w3.org/1999/xlink}href"


@dataclass(frozen=True)
class Series:
    """A named line; NaN leaves a gap. ``low``, ``high`` bound a band, of one point a bar; ``error`` is bars' length."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    error: Sequence[float] | None = None


UNIT = "{unit}"
"""The placeholder for a unit of bytes in an axis's label."""


def _in_units(series: Sequence[Series]) -> tuple[list[Series], str]:
    """Return series whose x are bytes in powers of 1000, the largest that the farthest comes to, and its name."""
    most = max((x for one in series for x in one.x if math.isfinite(x)), default=0.0)
    units = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "bytes": 1.0}
    unit = next((name for name, amount in units.items() if most >= amount), "bytes")
    return [replace(one, x=[x / units[unit] for x in one.x]) for one in series], unit


@contextmanager
def drawing(width: float, height: float) -> Iterator[Figure]:
    """Give a figure of so many inches, to be drawn within."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        yield Figure(figsize=(width, height))


def lines(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_x: bool = False,
) -> Figure:
    """Draw ``series`` into one chart with a legend below it.

    Each line has its own colour, marker and dash. On a logarithmic axis what is not above zero is left out.
    Where ``x_label`` has the word ``UNIT``, x are bytes, and are drawn in the largest unit that they come to.
    """
    if UNIT in x_label:
        series, unit = _in_units(series)
        x_label = x_label.replace(UNIT, unit)
    if log_x:  # a band that lies off the axis has no extent that could be drawn
        series = [s if max(s.x, default=0) > 0 else replace(s, low=None, high=None) for s in series]
    columns = 1 if max((len(one.name) for one in series), default=0) > _LONG_NAME else 2
    rows = -(-len(series) // columns)
    with drawing(_WIDTH, _HEIGHT + rows * _LEGEND_ROW) as figure:
        axes = figure.add_subplot()
        handles = [_draw(axes, index, one) for index, one in enumerate(series)]
        _frame(axes, title, x_label, y_label)
        scale(axes, [float(x) for one in series for x in one.x], log_x)
        if handles:
            legend = figure.legend(
                handles,
                [str(index) for index in range(len(handles))],
                loc="outside lower center",
                ncols=min(columns, len(series)),
                frameon=False,
                handlelength=4,
                labelcolor=INK,
            )
            for text, one in zip(legend.get_texts(), series, strict=True):
                text.set_text(_printable(one.name))  # so a leading "_" hides nothing
    return figure


def small_multiples(
    curves: NDArray[np.floating[Any]], rows: Sequence[str], columns: Sequence[str]
) -> Figure:
    """Draw curves over steps, a box for each name of a row and each of a column, all boxes to one scale.

    Parameters
    ----------
    curves : array
        [n, columns, steps].
    rows : sequence of str
        The name of each curve's row, [n]: curves of one name overlap.
    columns : sequence of str
        The columns' names; of many only the first are drawn.
    """
    named, across = list(dict.fromkeys(rows))[:_MOST_BOXES], columns[:_MOST_BOXES]
    with drawing(1 + 2.2 * len(across), 0.6 + 1.1 * len(named)) as figure:
        boxes = figure.subplots(len(named), len(across), sharex=True, sharey=True, squeeze=False)
        for row, name in enumerate(named):
            members = [place for place, one in enumerate(rows) if one == name]
            for column, box in enumerate(boxes[row]):
                box.plot(curves[members, column].T, color=LIGHT[0], linewidth=0.8, alpha=0.7)
                _frame(box, across[column] if row == 0 else "", "", name if column == 0 else "")
    return figure


def boxes(values: Mapping[str, Sequence[float]], *, title: str, y_label: str) -> Figure:
    """Draw a box for each name, from the lower to the upper quartile, and every value as a dot next to the median."""
    names = list(values)
    with drawing(_WIDTH, _HEIGHT + max(map(len, names), default=0) * _LETTER) as figure:
        axes = figure.add_subplot()
        for at, name in enumerate(names, 1):
            colour, own = LIGHT[(at - 1) % len(LIGHT)], _numbers(values[name])
            parts = ("boxprops", "whiskerprops", "capprops", "medianprops")
            looks: Any = {part: {"color": colour, "linewidth": 1.2} for part in parts}
            axes.boxplot([own], positions=[at], widths=0.5, showfliers=False, **looks)
            marker = _MARKERS[(at - 1) % len(_MARKERS)]
            axes.plot([at] * len(own), own, marker, color=colour, markersize=4, alpha=0.7)
        _frame(axes, title, "", y_label)
        axes.set_xlim(0.5, max(1, len(names)) + 0.5)
        axes.set_xticks(range(1, len(names) + 1), list(map(_printable, names)), rotation=90)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write ``figure`` as .png, .svg or .pdf, equal figures as equal bytes; ConfigError if ``path`` ends otherwise."""
    kind = path.suffix.lower().lstrip(".")
    if kind not in _SILENT:
        raise ConfigError(f"a chart cannot be written to {path.name}: choose .png, .svg or .pdf")
    write_atomically(path, partial(_render, figure, kind))


def inline_svg(figure: Figure, *, label: str) -> str:
    """Return ``figure`` as an ``<svg>`` to be in an HTML page, named by ``label``, which no other on the page has.

    Text stays text. Ink, paper, grid and lines take the page's ``--ink``, ``--paper``, ``--grid`` and ``--series-1``
    to ``--series-8``, where it has them.
    """
    buffer = io.BytesIO()
    _render(figure, "svg", buffer)
    root = ElementTree.fromstring(buffer.getvalue())
    _name_points(figure, root)
    prefix = "c" + hashlib.sha256(label.encode()).hexdigest()[:8] + "-"
    for element in list(root.iter()):
        for child in list(element):
            if child.tag in (f"{_SVG}metadata", f"{_SVG}style"):
                element.remove(child)
        _adapt(element, prefix)
    box = root.get("viewBox", "")
    root.attrib.clear()
    root.attrib |= {
        "viewBox": box,
        "role": "img",
        "aria-label": label,
        "style": "stroke-linejoin:round;stroke-linecap:butt",
    }
    heading = ElementTree.Element("title")
    heading.text = label
    root.insert(0, heading)
    return ElementTree.tostring(root, encoding="unicode")


def _name_points(figure: Figure, root: ElementTree.Element) -> None:
    """Give each marker of a line a title with its name and values, which a browser shows where one points."""
    groups = {element.get("id"): element for element in root.iter(f"{_SVG}g")}
    for line in (line for axes in figure.axes for line in axes.get_lines() if line.get_gid()):
        markers = list(groups[line.get_gid()].iter(f"{_SVG}use"))
        every: Any = line.get_markevery() or 1
        drawn = np.asarray(line.get_xydata())[::every]
        points = drawn[np.isfinite(drawn).all(1)].tolist()
        if len(points) != len(markers):  # some are outside the axes
            continue
        for marker, (x, y) in zip(markers, points, strict=True):
            title = ElementTree.SubElement(marker, "title")
            title.text = f"{line.get_label()}: {y:.4g} at {x:.4g}"


def _draw(axes: Axes, index: int, series: Series) -> Any:
    turn = index // len(LIGHT)
    colour = LIGHT[index % len(LIGHT)]
    x, y = _numbers(series.x), _numbers(series.y)
    if series.low is not None and series.high is not None:
        low, high = _numbers(series.low), _numbers(series.high)
        if len(x) == 1:  # a band has no width there
            axes.vlines(x, low, high, color=colour, linewidth=1.2)
        else:
            axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
    if series.error is not None:
        error = _numbers(series.error)
        axes.errorbar(x, y, error, fmt="none", ecolor=colour, elinewidth=1.2, capsize=3)
    (line,) = axes.plot(
        x,
        y,
        color=colour,
        marker=_MARKERS[index % len(_MARKERS)],
        linestyle=_DASHES[(index + turn) % len(_DASHES)],
        markersize=5,
        linewidth=1.6,
        markevery=max(1, -(-len(x) // _MAX_MARKERS)),
        label=_printable(series.name),
        gid=f"series-{index}",
    )
    return line


def scale(axes: Axes, x: list[float], log_x: bool) -> None:
    """Choose the x axis's ticks: integers for rounds, plain numbers on a logarithmic axis."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, MaxNLocator, NullLocator

    positive = [
        value for value in x if value > 0
    ]  # rows that send nothing have no place on a logarithmic axis
    if log_x and positive and max(positive) >= _NARROW * min(positive):
        axes.set_xscale("log", nonpositive="mask")
        wide = max(positive) > _WIDE * min(positive)
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    elif all(value.is_integer() for value in x):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _frame(axes: Axes, title: str, x_label: str, y_label: str) -> None:
    axes.set(title=_printable(title), xlabel=_printable(x_label), ylabel=_printable(y_label))


def _render(figure: Figure, kind: str, to: Any) -> None:
    import matplotlib as mpl

    with mpl.rc_context(_STYLE):
        figure.savefig(to, format=kind, dpi=_DPI, metadata=dict(_SILENT[kind]))


_ROLES = {INK: "--ink", PAPER: "--paper", GRID: "--grid"} | {
    colour: f"--series-{i}" for i, colour in enumerate(LIGHT, start=1)
}
_COLOUR = re.compile("|".join(_ROLES))
_REFERENCE = re.compile(r"url\(#")


def _adapt(element: ElementTree.Element, prefix: str) -> None:
    """Make one element fit for HTML: no namespaces, ids of this chart's own, colours by role."""
    element.tag = element.tag.removeprefix(_SVG)
    reference = element.attrib.pop(_HREF, None)
    if reference is not None:
        element.set("href", f"#{prefix}{reference.removeprefix('#')}")
    if "id" in element.attrib:
        element.set("id", prefix + element.attrib["id"])
    for name in ("style", "clip-path"):
        if name in element.attrib:
            value = _REFERENCE.sub(f"url(#{prefix}", element.attrib[name])
            element.set(name, _COLOUR.sub(lambda m: f"var({_ROLES[m[0]]},{m[0]})", value))


def _numbers(values: Sequence[float]) -> list[float]:
    return [float(value) for value in values]


def _printable(text: str) -> str:
    """Return ``text`` without control characters, which SVG cannot hold."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
