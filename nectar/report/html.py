"""HTML from values: whatever is no Markup is text and gets escaped, so a record's words stay words."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

_VOID = ("img", "meta", "br")

Attribute = str | int | bool | None


class Markup(str):
    """Text that is HTML already: made here, or a constant or SVG of our own; never from a record."""

    __slots__ = ()


def h(tag: str, *children: str | None, **attributes: Attribute) -> Markup:
    """Return an element; ``class_`` and ``aria_label`` become ``class`` and ``aria-label``."""
    given = "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in _VOID:
        return Markup(f"<{tag}{given}>")
    return Markup(f"<{tag}{given}>{join(children)}</{tag}>")


def join(parts: Iterable[str | None]) -> Markup:
    """Return the parts in a row, those that are no Markup escaped."""
    return Markup("".join(escape(part) for part in parts if part is not None))


def escape(text: str) -> Markup:
    """Return ``text`` as HTML; what does not print, such as a change of direction, is shown as a replacement."""
    if isinstance(text, Markup):
        return text
    visible = (c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
    return Markup(html.escape("".join(visible)))


def words(title: str) -> Markup:
    """Return the head of a column of words, which stand to the left."""
    return h("th", title, scope="col", class_="left")


def scroll(content: str, label: str) -> Markup:
    """Return ``content`` in a box that scrolls sideways on its own, by touch and by keyboard."""
    return h("div", content, class_="scroll", tabindex=0, role="region", aria_label=label)


def table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, foot: Sequence[str] = ()
) -> Markup:
    """Return a table in a box of its own; a row's first cell names it. A cell may be an element already."""
    body = [h("tr", h("th", row[0], scope="row"), *map(_cell, row[1:])) for row in rows]
    parts = [
        h("caption", caption),
        h("thead", h("tr", *(_head(title) for title in head))),
        h("tbody", *body),
    ]
    if foot:
        last = h("tr", h("th", foot[0], scope="row"), *map(_cell, foot[1:]))
        parts.append(h("tfoot", last))
    return scroll(h("table", *parts), caption)


def facts(pairs: Iterable[tuple[str, str]]) -> Markup:
    """Return terms and what is said of each."""
    return h("dl", *(h("div", h("dt", term), h("dd", what)) for term, what in pairs))


def _cell(content: str) -> Markup:
    if isinstance(content, Markup) and content.startswith("<td"):
        return content
    return h("td", content)


def _head(title: str) -> Markup:
    if isinstance(title, Markup) and title.startswith("<th"):
        return title
    return h("th", title, scope="col")


def _attribute(name: str, value: Attribute) -> str:
    key = name.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    return f" {key}" if value is True else f' {key}="{escape(str(value))}"'
