"""The pictures of `nectar data`: who holds what as bubbles with numbers, and some images of each class."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from common.samples.dataset import Dataset
from common.samples.inputs import samples
from common.samples.row_text import column_names, csv_of_rows
from nectar import charts
from nectar.dataset.account import Holdings, examples
from server_app.pictures import grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: a light fill, on which dark numbers are read; size and number say all, so no colour has to be told from another
_FILL, _EDGE = "#a9d3f2", "#0072b2"

#: more sites or classes than this get no numbers, and smaller cells; more than _MAX_NAMED, no names
_MAX_NUMBERED, _MAX_NAMED = 30, 110
_CELL, _SMALL_CELL, _ROOM, _SMALL_ROOM = 0.46, 0.16, 1.6, 1.1  # inches
#: a bubble's width, as a share of its cell, that has room for a number
_HOLDS = 0.35

_NARROWEST = 3.2

_SAMPLES, _MIN_SIDE = 10, 64
_MARGIN, _TEXT = 8, 13  # pixels


def draw_counts(holdings: Holdings, title: str) -> Figure:
    """Draw a bubble for each site (column) and class (row), its area in proportion to the number of images."""
    import matplotlib as mpl
    from matplotlib.collections import EllipseCollection
    from matplotlib.figure import Figure

    sites, classes = holdings.counts.shape
    numbered = max(sites, classes) <= _MAX_NUMBERED
    cell, room = (_CELL, _ROOM) if numbered else (_SMALL_CELL, _SMALL_ROOM)
    label = max(map(len, holdings.classes)) * 0.09
    size = (max(_NARROWEST, sites * cell + label + _ROOM), classes * cell + room)
    with mpl.rc_context({"text.parse_math": False, "font.size": 10 if numbered else 7}):
        figure = Figure(figsize=size, facecolor=charts.PAPER, layout="constrained")
        axes = figure.add_subplot(aspect="equal")
        column, row = np.nonzero(holdings.counts)
        counts = holdings.counts[column, row]
        across = 0.94 * np.sqrt(counts / counts.max())
        bubbles = EllipseCollection(
            across,
            across,
            np.zeros(len(counts)),
            units="xy",
            offsets=np.column_stack([column, row]),
            offset_transform=axes.transData,
            facecolor=_FILL,
            edgecolor=_EDGE,
            linewidth=0.8 if numbered else 0.4,
        )
        axes.add_collection(bubbles)
        if numbered:
            for x, y, count, width in zip(*_lists(column, row, counts, across), strict=True):
                # Over a bubble too small to hold its number, clear of the line through it.
                at = (y, "center") if width > _HOLDS else (y - width / 2 - 0.06, "bottom")
                axes.text(x, at[0], _short(count), ha="center", va=at[1], size=8)
        _label(axes, holdings, numbered, title)
    return figure


def _lists(*arrays: NDArray[Any]) -> list[list[Any]]:
    return [array.tolist() for array in arrays]


def _label(axes: Axes, holdings: Holdings, numbered: bool, title: str) -> None:
    sites, classes = holdings.counts.shape
    totals = holdings.counts.sum(axis=1)
    names = [name.removeprefix("partition-") for name in holdings.sites]
    if numbered:
        names = [f"{name}\n{_short(int(n))}" for name, n in zip(names, totals, strict=True)]
    axes.set_xlim(-0.5, sites - 0.5)
    axes.set_ylim(classes - 0.5, -0.5)
    axes.set_xticks(range(sites), names) if sites <= _MAX_NUMBERED else None
    axes.set_yticks(range(classes), holdings.classes) if classes <= _MAX_NAMED else None
    axes.tick_params(length=0, colors=charts.INK)
    axes.set_axisbelow(True)
    axes.grid(color=charts.GRID, linewidth=0.6)
    for spine in axes.spines.values():
        spine.set_color(charts.GRID)
    axes.set_xlabel(f"site, and its {holdings.unit}" if numbered else "site", color=charts.INK)
    axes.set_title(title, color=charts.INK, fontsize="large", loc="left")


def _short(count: int) -> str:
    """Write a count in four characters at most."""
    if count < 10_000:
        return str(count)
    return f"{count / 1000:.0f}k" if count < 1_000_000 else f"{count / 1e6:.0f}M"


def draw_samples(dataset: Dataset) -> Image.Image:
    """Draw ten images of each class, as the model sees them, in a row with the class's name."""
    split, chosen = examples(dataset, _SAMPLES)
    shown = samples(split, dataset.info, chosen)
    sheet = grid(shown.inputs(slice(None)), shown.labels, dataset.info).convert("RGB")
    rows = sorted(set(shown.labels.tolist()))
    times = max(1, _MIN_SIDE * len(rows) // sheet.height)
    sheet = sheet.resize((sheet.width * times, sheet.height * times), Image.Resampling.NEAREST)
    font = _font()
    names = [dataset.info.classes[row] for row in rows]
    margin = round(max(font.getlength(name) for name in names)) + 2 * _MARGIN
    picture = Image.new("RGB", (margin + sheet.width, sheet.height), "white")
    picture.paste(sheet, (margin, 0))
    draw = ImageDraw.Draw(picture)
    for place, name in enumerate(names):
        middle = (place + 0.5) * sheet.height / len(names)
        draw.text((margin - _MARGIN, middle), name, fill="black", font=font, anchor="rm")
    return picture


def samples_as_text(dataset: Dataset) -> str:
    """Return ten rows of each class as comma-separated text, as far as they were between the bounds."""
    split, chosen = examples(dataset, _SAMPLES)
    shown = samples(split, dataset.info, chosen)
    names = [dataset.info.classes[label] for label in shown.labels.tolist()]
    return csv_of_rows(shown.inputs(slice(None)), names, dataset.info)


def draw_series(dataset: Dataset) -> Figure:
    """Draw ten series of each class as curves, as the model is given them: a row a class, a column a channel."""
    split, chosen = examples(dataset, _SAMPLES)
    shown = samples(split, dataset.info, chosen)
    return charts.small_multiples(
        shown.inputs(slice(None))[:, :, 0].numpy(),
        [dataset.info.classes[label] for label in shown.labels.tolist()],
        column_names(dataset.info),
    )


def _font() -> ImageFont.FreeTypeFont:
    """Return matplotlib's own font, which knows more scripts than Pillow's."""
    import matplotlib as mpl

    return ImageFont.truetype(Path(mpl.get_data_path(), "fonts/ttf/DejaVuSans.ttf"), _TEXT)
