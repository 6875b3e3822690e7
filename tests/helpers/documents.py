"""A report as the tests read it, and what holds of every one."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser

from PIL import Image

from nectar.records.record import RunRecord
from nectar.report import page as pages
from nectar.report.view import View
from server_app.record import Record

_VOID = {"img", "meta", "br", "path", "rect", "circle"}


class Document(HTMLParser):
    """What the tests ask of a page; nesting is checked on the way."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.headings: list[int] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


def written(*records: Record) -> Document:
    views = [View(RunRecord.open(record.directory)) for record in records]
    return Document(pages.page(views))


def check(document: Document) -> None:
    """What holds of every report."""
    ids = [attributes["id"] for _, attributes in document.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    assert document.headings[0] == 1
    assert document.headings.count(1) == 1
    assert all(b - a <= 1 for a, b in zip(document.headings, document.headings[1:], strict=False))
    assert document.all("html")[0]["lang"] == "en"
    policy = document.all("meta")[1]["content"]
    assert policy.startswith("default-src 'none'; img-src data:;")
    for image in document.all("img"):
        assert image["alt"]
        kind, _, data = image["src"].partition("base64,")
        assert kind == "data:image/png;"
        with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
            picture.load()
            assert (str(picture.width), str(picture.height)) == (image["width"], image["height"])
    for _, attributes in document.tags:
        for name in ("href", "src", "action", "xlink:href"):
            value = attributes.get(name, "#")
            assert value.startswith("data:image/png") or value.lstrip("#") in {"", *ids}, value
        assert not any(name.startswith("on") for name in attributes)
    for box in (a for _, a in document.tags if a.get("class") == "scroll"):
        assert box["tabindex"] == "0"
        assert box["aria-label"]
    assert not document.all("script")
    assert len(document.all("caption")) == len(document.all("table"))
    assert all(cell["scope"] in ("row", "col") for cell in document.all("th"))
