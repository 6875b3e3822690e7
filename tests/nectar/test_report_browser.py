"""The report in a real browser: nothing breaks, nothing is asked of the network, everybody can read it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, Page, find_chromium
from federation import TamperedGrid, run
from small import SMALL
from tampering import nan, with_arrays

from nectar.records.record import RunRecord
from nectar.report.page import page
from nectar.report.view import View

CHROMIUM = find_chromium()
pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(CHROMIUM is None and not os.environ.get("CI"), reason="no chromium here"),
]

#: text below 4.5:1 (its contrast with the paper behind it), of what is shown
LOW_CONTRAST = """(() => {
  const parts = c => { const m = c.match(/[\\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
  const light = c => { const [r, g, b] = c.map(v => { v /= 255;
    return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) {
    const c = parts(getComputedStyle(e).backgroundColor); if (c[3] > 0) return c.slice(0, 3); }
    return [255, 255, 255]; };
  const low = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !e.checkVisibility() || e.tagName === 'title') continue;
    const style = getComputedStyle(e);
    const ink = e.namespaceURI.includes('svg') ? style.fill : style.color;
    const [a, b] = [light(parts(ink).slice(0, 3)), light(behind(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push([walker.currentNode.data.trim(), ratio, ink]);
  }
  return low;
})()"""
BROKEN_IMAGES = (
    "[...document.images].filter(i => !i.complete || i.naturalWidth === 0).map(i => i.alt)"
)
#: a phone zooms out to a page that is too wide, so that innerWidth would grow with it
WIDTH = "document.documentElement.scrollWidth"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert CHROMIUM is not None, "install chromium, or name one in NECTAR_CHROMIUM"
    with Browser(CHROMIUM, tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs on one page: every kind of section, with a rejected reply."""
    folder = tmp_path_factory.mktemp("report")
    config: dict[str, Any] = {"output-dir": str(folder / "runs"), "rounds": 2, "set": SMALL}
    records = [
        run(config, TamperedGrid, tampers={1: with_arrays(nan)}),
        run({**config, "method": "fedavg"}),
    ]
    path = folder / "report.html"
    path.write_text(page([View(RunRecord.open(r.directory)) for r in records]), encoding="utf-8")
    return path


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1280])
def test_everything_is_shown_and_can_be_read(
    browser: Browser, report: Path, width: int, dark: bool
) -> None:
    shown = Page(browser, report, width=width, dark=dark)
    assert shown.complaints == []
    assert shown.evaluate("document.images.length") > 10
    assert shown.evaluate(BROKEN_IMAGES) == []
    assert shown.evaluate("document.querySelectorAll('svg').length") == 12
    assert shown.evaluate(WIDTH) <= width
    shown.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert shown.evaluate(WIDTH) <= width
    assert shown.evaluate(LOW_CONTRAST) == []
    paper = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(21, 24, 28)" if dark else "rgb(255, 255, 255)")


def test_every_box_that_scrolls_is_reached_with_the_tab_key(browser: Browser, report: Path) -> None:
    shown = Page(browser, report, width=360)
    shown.press_tab()
    assert shown.evaluate("document.activeElement.className") == "skip"
    left = shown.evaluate("document.activeElement.getBoundingClientRect().left")
    assert left >= 0, "the skip link shows itself"
    reached, wide = (
        {""},
        "[...document.querySelectorAll('.scroll')].filter(b => b.checkVisibility()",
    )
    boxes = set(shown.evaluate(f"{wide}).map(b => b.ariaLabel)"))
    for _ in range(150):
        shown.press_tab()
        reached.add(shown.evaluate("document.activeElement.ariaLabel || ''"))
    assert boxes <= reached
    scrolling = shown.evaluate(f"{wide} && b.scrollWidth > b.clientWidth).length")
    assert scrolling > 0
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    shown.press_tab()
    assert shown.evaluate(outline) == "solid"


def test_it_prints_with_everything_unfolded(browser: Browser, report: Path) -> None:
    shown = Page(browser, report, dark=True)
    pdf = shown.pdf()
    assert pdf.startswith(b"%PDF")
    shown.call("Emulation.setEmulatedMedia", media="print")
    hidden = "[...document.querySelectorAll('details')].filter(d => d.lastElementChild.clientHeight === 0).length"
    assert shown.evaluate(hidden) == 0
    paper = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == "rgb(255, 255, 255)"


@pytest.mark.parametrize(
    ("broken", "by"),
    [
        ("<script>undefined_function()</script>", "complaints"),
        ("<img src='https://example.invalid/x.png' alt='x'>", "complaints"),
        ("<img src='data:image/png;base64,AAAA' alt='damaged'>", "images"),
        ("<div style='width:900px'>wide</div>", "overflow"),
        ("<p style='color:#999'>faint</p>", "contrast"),
    ],
)
def test_these_tests_notice_what_is_broken(
    browser: Browser, report: Path, tmp_path: Path, broken: str, by: str
) -> None:
    text = report.read_text(encoding="utf-8").replace("</main>", f"{broken}</main>")
    if broken.startswith("<script>"):  # the page's policy lets no script run at all: without it
        text = text.replace(
            "default-src 'none';", "default-src 'none'; script-src 'unsafe-inline';"
        )
    path = tmp_path / "broken.html"
    path.write_text(text, encoding="utf-8")
    shown = Page(browser, path, width=360)
    found = {
        "complaints": bool(shown.complaints),
        "images": shown.evaluate(BROKEN_IMAGES) != [],
        "overflow": shown.evaluate(WIDTH) > 360,
        "contrast": shown.evaluate(LOW_CONTRAST) != [],
    }
    assert found[by]
