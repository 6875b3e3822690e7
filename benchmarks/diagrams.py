"""The drawing of what leaves a site: ``python -m benchmarks.diagrams`` writes it into ``docs/images``.

SVG of boxes and text, with a background that follows the reader's light or dark mode.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from common.methods import METHODS, settings_class
from common.settings.base import Disclosure
from common.storage.files import write_text

PLACE = Path(__file__).parents[1] / "docs" / "images" / "leaves.svg"

_STYLE = """
svg { --paper: #ffffff; --ink: #1a1b1c; --soft: #5c6064; --zone: #f1f3f5; --box: #dbe9f6; --own: #fbe7c6 }
@media screen and (prefers-color-scheme: dark) {
  svg { --paper: #1b1e22; --ink: #eceef0; --soft: #a7adb3; --zone: #262a30; --box: #24445f; --own: #5a4415 }
}
text { font: 13px system-ui, sans-serif; fill: var(--ink) } .head { font-weight: 600 } .soft { fill: var(--soft) }
.paper { fill: var(--paper) } .zone { fill: var(--zone) } .box { fill: var(--box) } .own { fill: var(--own) }
"""
_LINE = 18


def drawing(title: str, width: int, height: int, parts: Iterable[str]) -> str:
    """Return an SVG; ``title`` is what a screen reader says of it."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">'
    )
    ground = rect(0, 0, width, height, "paper")
    return "\n".join([head, f"<style>{_STYLE}</style>", ground, *parts, "</svg>\n"])


def rect(x: int, y: int, width: int, height: int, kind: str) -> str:
    """Return a rectangle with round corners."""
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>'


def words(x: int, y: int, text: str, kind: str = "") -> str:
    """Return a line of text whose foot is at ``y``."""
    return f'<text x="{x}" y="{y}" class="{kind}">{escape(text)}</text>'


def box(x: int, y: int, width: int, height: int, lines: Sequence[str], kind: str = "box") -> str:
    """Return a rectangle with a heading and lines below it, those of a zone softly."""
    texts = [words(x + 12, y + 22, lines[0], "head")]
    texts += [
        words(x + 12, y + 22 + _LINE * i, line, "soft") for i, line in enumerate(lines[1:], 1)
    ]
    return "\n".join([rect(x, y, width, height, kind), *texts])


def leaves() -> str:
    """Draw what leaves a site, method by method: from what each discloses under its default settings."""
    kinds: dict[Disclosure, list[str]] = {}
    for name in METHODS:
        message = settings_class(name)().disclosure() or Disclosure("nothing")
        kinds.setdefault(message, []).append(name)
    ranked = sorted(kinds.items(), key=lambda kind: _closeness(kind[0]), reverse=True)
    rows = [(message, _wrapped(names)) for message, names in ranked]
    parts = [
        words(28, 34, "what a site sends, real data first", "head"),
        words(420, 34, "methods, by their default settings", "head"),
    ]
    y = 48
    for message, lines in rows:
        facts = [one for one in (_origin(message), _tells(message)) if one]
        height = 20 + _LINE * max(1 + len(facts), len(lines))
        kind = "own" if message.unchanged or message.images else "box"
        parts += [box(16, y, 380, height, [message.payload, *facts], kind)]
        parts += [words(420, y + 22 + _LINE * i, line) for i, line in enumerate(lines)]
        y += height + 10
    return drawing("What leaves a site, by method", 840, y + 6, parts)


def _closeness(said: Disclosure) -> tuple[int, ...]:
    return (
        said.unchanged,
        said.images,
        bool(said.began_as),
        said.labels,
        said.payload != "nothing",
    )


def _origin(said: Disclosure) -> str:
    return (
        f"started as {said.began_as}" + (", sent unchanged" if said.unchanged else "")
        if said.began_as
        else ""
    )


def _tells(said: Disclosure) -> str:
    facts = ["which classes the site holds"] * said.labels + [
        "how many of each class"
    ] * said.class_counts
    facts += ["the site's update"] * said.update
    return f"tells {', '.join(facts)}" if facts and said.payload != "nothing" else ""


def _wrapped(names: Sequence[str], width: int = 52) -> list[str]:
    lines = [""]
    for name in names:
        if len(lines[-1]) + len(name) > width:
            lines.append("")
        lines[-1] += f"{', ' if lines[-1] else ''}{name}"
    return lines


def main() -> int:
    """Write the drawing."""
    write_text(PLACE, leaves())
    return 0


if __name__ == "__main__":
    sys.exit(main())
