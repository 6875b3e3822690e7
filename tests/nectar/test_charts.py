"""Charts: every line told apart, files that repeat, and SVG that fits any page."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from common.errors import ConfigError
from nectar.charts import INK, LIGHT, PAPER, UNIT, Series, boxes, inline_svg, lines, save
from nectar.report.page import COLOURS

BOTH = (
    Series("FedDM", [0, 1, 2], [0.1, 0.9, 0.95], [0.1, 0.8, 0.9], [0.1, 0.95, 0.97]),
    Series("FedAvg", [0, 1, 2], [0.1, 0.4, 0.6]),
)


def chart(series: tuple[Series, ...] = BOTH, *, log_x: bool = False) -> str:
    figure = lines(series, title="Accuracy", x_label="round", y_label="accuracy", log_x=log_x)
    return inline_svg(figure, label="accuracy of two methods")


@pytest.mark.extended
def test_the_same_chart_gives_the_same_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "a.svg", "b.svg", "a.pdf", "b.pdf"):
        save(lines(BOTH, title="t", x_label="x", y_label="y"), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "a.pdf").read_bytes() == (tmp_path / "b.pdf").read_bytes()
    assert len(list(tmp_path.iterdir())) == 6
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size == (768, 531)
    with pytest.raises(ConfigError, match=r"written to a.eps: choose .png, .svg or .pdf"):
        save(lines(BOTH, title="t", x_label="x", y_label="y"), tmp_path / "a.eps")


@pytest.mark.extended
def test_lines_differ_without_colour() -> None:
    """Dashes and markers, as drawn: sixteen lines, no two of the same kind."""
    many = tuple(Series(f"s{i}", [0, 1], [i, i + 1]) for i in range(16))
    figure = lines(many, title="", x_label="", y_label="")
    kinds = {(line.get_marker(), str(line._dash_pattern)) for line in figure.axes[0].get_lines()}  # type: ignore[attr-defined]
    assert len(kinds) == 16


def test_a_box_has_every_seed_and_bars_have_their_length() -> None:
    figure = boxes({"a": [0.1, 0.2, 0.6], "$b$": [0.5]}, title="t", y_label="accuracy")
    (axes,) = figure.axes
    dots = [line.get_ydata() for line in axes.get_lines() if line.get_linestyle() == "None"]
    assert [list(each) for each in dots] == [[0.1, 0.2, 0.6], [0.5]]  # type: ignore[arg-type]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "$b$"]
    series = Series("s", [1, 2], [0.5, 0.6], error=[0.1, 0.0])
    (axes,) = lines((series,), title="", x_label="", y_label="").axes
    (bars,) = axes.collections
    ends = [[round(float(y), 9) for _, y in bar] for bar in bars.get_segments()]  # type: ignore[attr-defined]
    assert ends == [[0.4, 0.6], [0.6, 0.6]]


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_lines_are_seen_on_light_and_dark_paper() -> None:
    assert contrast(INK, PAPER) > 15
    assert min(contrast(colour, "#ffffff") for colour in LIGHT) >= 3
    light, dark = (re.findall(r"--series-\d:(#\w{6})", part) for part in COLOURS.split("@media"))
    assert tuple(light) == LIGHT
    assert len(dark) == len(light)
    assert min(contrast(colour, "#15181c") for colour in dark) >= 3


def test_an_inline_chart_is_named_takes_the_pages_colours_and_loads_nothing() -> None:
    svg = chart()
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    assert root.get("aria-label") == root.findtext("title") == "accuracy of two methods"
    texts = {element.text for element in root.iter("text")}
    assert {"FedDM", "FedAvg", "round", "accuracy", "Accuracy"} <= texts
    for name in ("--ink", "--paper", "--grid", "--series-1", "--series-2"):
        assert f"var({name}," in svg
    bare = re.sub(r"var\([^)]*\)", "", svg)
    assert not re.search(r"#[0-9a-f]{6}\b(?!-)", bare.replace("url(#", "")), "a colour of its own"
    assert "http" not in svg
    assert "<style" not in svg
    HTMLParser().feed(svg)


def test_ids_are_the_charts_own_and_references_find_them() -> None:
    one = inline_svg(lines(BOTH, title="", x_label="", y_label=""), label="one")
    two = inline_svg(lines(BOTH, title="", x_label="", y_label=""), label="two")
    ids = [re.findall(r'\bid="([^"]+)"', svg) for svg in (one, two)]
    assert len(set(ids[0])) == len(ids[0])
    assert not set(ids[0]) & set(ids[1])
    wanted = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', one)
    assert wanted
    assert {a or b for a, b in wanted} <= set(ids[0])


def test_names_are_shown_as_they_are() -> None:
    names = ("$x_i$ <b>&", "_hidden", "tab\there\x01", "")
    svg = chart(tuple(Series(name, [1, 2], [1, 2]) for name in names))
    texts = [element.text for element in ElementTree.fromstring(svg).iter("text")]
    assert "$x_i$ <b>&" in texts
    assert "_hidden" in texts
    assert "tab\N{REPLACEMENT CHARACTER}here\N{REPLACEMENT CHARACTER}" in texts
    assert "<b>" not in svg


def test_gaps_nothing_at_all_and_logarithms_are_drawn(tmp_path: Path) -> None:
    chart(())
    chart((Series("empty", [], []), Series("gap", [0, 1, 2], [1, math.nan, 3])))
    svg = chart((Series("bytes", [0, 10, 1000], [0.1, 0.5, 0.9]),), log_x=True)
    texts = [element.text for element in ElementTree.fromstring(svg).iter("text")]
    assert {"10", "100", "1000"} <= set(texts), "plain numbers, no mathematics"


@given(st.floats(1e-3, 1e9), st.floats(1, 1e4))
@settings(max_examples=25, deadline=None)
def test_no_axis_has_a_single_mark(least: float, wide: float) -> None:
    one = Series("s", [least, least * wide], [0.1, 0.9])
    (axes,) = lines((one,), title="", x_label="", y_label="", log_x=True).axes
    low, high = axes.get_xlim()
    assert sum(low <= tick <= high for tick in axes.get_xticks()) > 1


@pytest.mark.filterwarnings("error")
def test_rows_that_send_nothing_are_drawn_beside_others_and_alone(tmp_path: Path) -> None:
    def row(x: list[float]) -> Series:
        return Series(str(x), x, [0.1, 0.2], [0.0, 0.1], [0.2, 0.3])

    for rows in ([row([0.0, 0.0])], [row([0.0, 0.0]), row([0.0, 5.0])]):
        figure = lines(rows, title="t", x_label="sent", y_label="accuracy", log_x=True)
        save(figure, tmp_path / "chart.svg")
        assert len(figure.axes[0].lines) == len(rows)


@pytest.mark.parametrize(
    ("sent", "label", "last"),
    [
        (2.5e9, "GB sent", 2.5),
        (3e6, "MB sent", 3.0),
        (999_999.0, "kB sent", 999.999),
        (12.0, "bytes sent", 12.0),
        (0.0, "bytes sent", 0.0),
    ],
)
def test_bytes_are_drawn_in_the_unit_that_they_come_to(
    sent: float, label: str, last: float
) -> None:
    both = (Series("a", [0, sent], [0.1, 0.2]), Series("b", [math.nan, sent / 2], [0.1, 0.3]))
    (axes,) = lines(both, title="", x_label=f"{UNIT} sent", y_label="").axes
    assert axes.get_xlabel() == label
    assert max(float(line.get_xdata()[-1]) for line in axes.lines) == pytest.approx(last)


def test_a_marker_has_a_title_with_its_line_and_values() -> None:
    """What is missing has no marker, and so no title."""
    series = [Series("a_b", [0, 1, 2], [0.5, math.nan, 0.75]), Series("c", [0, 1], [1, 2])]
    text = inline_svg(lines(series, title="t", x_label="round", y_label="y"), label="chart")
    titles = re.findall(r"<use[^>]*><title>([^<]*)</title></use>", text)
    assert titles == ["a_b: 0.5 at 0", "a_b: 0.75 at 2", "c: 1 at 0", "c: 2 at 1"]
