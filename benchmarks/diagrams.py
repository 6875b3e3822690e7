"""The drawings of the documents: ``python -m benchmarks.diagrams`` writes them into ``docs/images``.

SVG of boxes, arrows and text, on a ground of their own, light or dark as the reader's system is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from common.methods import METHODS, settings_class
from common.settings.disclosure import Disclosure
from common.storage.files import write_text

PLACE = Path(__file__).parents[1] / "docs" / "images"

_STYLE = """
svg { --paper: #ffffff; --ink: #1a1b1c; --soft: #5c6064; --zone: #f1f3f5; --box: #dbe9f6; --own: #fbe7c6 }
@media (prefers-color-scheme: dark) {
  svg { --paper: #1b1e22; --ink: #eceef0; --soft: #a7adb3; --zone: #262a30; --box: #24445f; --own: #5a4415 }
}
text { font: 13px system-ui, sans-serif; fill: var(--ink) } .head { font-weight: 600 } .soft { fill: var(--soft) }
.paper { fill: var(--paper) } .zone { fill: var(--zone) } .box { fill: var(--box) } .own { fill: var(--own) }
path { stroke: var(--ink); stroke-width: 1.4; fill: none } .dashed { stroke-dasharray: 4 4; stroke: var(--soft) }
marker path { fill: var(--ink); stroke: none }
"""
_LINE = 18


def drawing(title: str, width: int, height: int, parts: Iterable[str]) -> str:
    """Return an SVG; ``title`` is what a screen reader says of it."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">'
    )
    tip = (
        '<defs><marker id="end" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path d="M0 0 10 5 0 10z"/></marker></defs>'
    )
    ground = rect(0, 0, width, height, "paper")
    return "\n".join([head, f"<style>{_STYLE}</style>", tip, ground, *parts, "</svg>\n"])


def rect(x: int, y: int, width: int, height: int, kind: str) -> str:
    """Return a rectangle with round corners."""
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>'


def words(x: int, y: int, text: str, kind: str = "", anchor: str = "start") -> str:
    """Return a line of text whose foot is at ``y``."""
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def box(x: int, y: int, width: int, height: int, lines: Sequence[str], kind: str = "box") -> str:
    """Return a rectangle with a heading and lines below it, those of a zone softly."""
    said = [words(x + 12, y + 22, lines[0], "head")]
    said += [words(x + 12, y + 22 + _LINE * i, line, "soft") for i, line in enumerate(lines[1:], 1)]
    return "\n".join([rect(x, y, width, height, kind), *said])


def arrow(x: int, y: int, to_x: int, to_y: int, kind: str = "", *, both: bool = False) -> str:
    """Return an arrow."""
    begun = ' marker-start="url(#end)"' if both else ""
    return f'<path class="{kind}" d="M{x} {y} {to_x} {to_y}" marker-end="url(#end)"{begun}/>'


def architecture() -> str:
    """Draw who runs what, and who trusts whom."""
    parts = [
        box(16, 16, 206, 300, ["The operator"], "zone"),
        box(32, 142, 174, 76, ["nectar", "submit, status, fetch,", "keys, report, export"]),
        box(
            32,
            236,
            174,
            68,
            ["the operator's own", "the authority's key,", "who is registered"],
            "own",
        ),
        box(276, 16, 236, 300, ["The server"], "zone"),
        box(292, 56, 204, 58, ["proxy", "one port for the sites, TLS"]),
        box(292, 142, 204, 76, ["SuperLink", "Fleet API: sites", "Control API: operator alone"]),
        box(292, 246, 204, 58, ["ServerApp, one a run", "the strategy, the record"]),
        box(590, 16, 234, 300, ["A site, one of many"], "zone"),
        box(606, 56, 202, 58, ["SuperNode", "calls out, is never called"]),
        box(
            606,
            142,
            202,
            76,
            ["ClientApp", "the method's client, of the", "app that is sent or pinned"],
        ),
        box(
            606,
            236,
            202,
            68,
            ["the owner's own", "images, node config, key,", "ledger, log of what left"],
            "own",
        ),
        arrow(206, 180, 292, 180),
        words(249, 171, "runs", "soft", "middle"),
        arrow(394, 114, 394, 142, both=True),
        arrow(394, 218, 394, 246, both=True),
        arrow(606, 85, 496, 85),
        words(551, 56, "TLS and", "soft", "middle"),
        words(551, 74, "key pair", "soft", "middle"),
        arrow(707, 114, 707, 142, both=True),
        arrow(707, 236, 707, 218),
        words(16, 350, "A site trusts", "head"),
        words(
            120,
            350,
            "whoever can submit a run with all that its SuperNode's user may do, unless it pins the app.",
        ),
        words(16, 374, "The server", "head"),
        words(
            120,
            374,
            "believes no reply: each is held to what an honest site can send, and to the round's others.",
        ),
        words(16, 398, "The operator", "head"),
        words(
            120,
            398,
            "sees what leaves a site under the method in use; nobody reaches a site from outside.",
        ),
    ]
    return drawing("Operator, server and sites, and who trusts whom", 840, 416, parts)


_ROUND = (
    ("server", "the method's strategy gives each chosen site an instruction: a phase, a payload"),
    ("down", "instruction: the round's weights, or what the method sends"),
    ("site", "decode it, refuse what the owner's node config vetoes"),
    ("site", "compute on the site's own images: train, or distil"),
    ("site", "release: charge the ledger, let the owner look, note it in the site's log"),
    ("up", "reply: weights, a part of an update, or synthetic images"),
    ("server", "decode it, hold it to its bounds and to the round's other replies"),
    ("server", "the method makes new weights of what passed"),
    ("server", "evaluate; write the round's line, then the checkpoint"),
)


def a_round() -> str:
    """Draw a round from the instruction to the checkpoint."""
    server, site, top, step = 150, 690, 66, 46
    foot = top + step * len(_ROUND)
    parts = [
        box(server - 90, 16, 180, 36, ["ServerApp"]),
        box(site - 90, 16, 180, 36, ["ClientApp at a site"]),
        f'<path class="dashed" d="M{server} 52 {server} {foot}"/>',
        f'<path class="dashed" d="M{site} 52 {site} {foot}"/>',
    ]
    for number, (where, text) in enumerate(_ROUND):
        y = top + step * number
        said = f"{number + 1}. {text}"
        if where in ("down", "up"):
            ends = (server, site) if where == "down" else (site, server)
            parts += [arrow(ends[0], y + 26, ends[1], y + 26)]
            parts += [words((server + site) // 2, y + 18, said, "head", "middle")]
            continue
        width = 7 * len(said) + 24
        at = server - 90 if where == "server" else site + 90 - width
        parts += [rect(at, y + 4, width, 32, "box"), words(at + 12, y + 25, said)]
    return drawing("A round, step by step", 840, foot + 16, parts)


def leaves() -> str:
    """Draw what leaves a site, method by method: from what each discloses under its default settings."""
    kinds: dict[Disclosure, list[str]] = {}
    for name in METHODS:
        said = settings_class(name)().disclosure() or Disclosure("nothing")
        kinds.setdefault(said, []).append(name)
    ranked = sorted(kinds.items(), key=lambda kind: _closeness(kind[0]), reverse=True)
    rows = [(said, _wrapped(names)) for said, names in ranked]
    parts = [
        words(28, 34, "what a site sends, real data first", "head"),
        words(420, 34, "methods, by their default settings", "head"),
    ]
    y = 48
    for said, lines in rows:
        told = [one for one in (_origin(said), _tells(said)) if one]
        height = 20 + _LINE * max(1 + len(told), len(lines))
        kind = "own" if said.unchanged or said.images else "box"
        parts += [box(16, y, 380, height, [said.payload, *told], kind)]
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
        f"began as {said.began_as}" + (", sent as they are" if said.unchanged else "")
        if said.began_as
        else ""
    )


def _tells(said: Disclosure) -> str:
    told = ["which classes the site holds"] * said.labels + [
        "how many of each class"
    ] * said.class_counts
    told += ["the site's update"] * said.update
    return f"tells {', '.join(told)}" if told and said.payload != "nothing" else ""


def _wrapped(names: Sequence[str], width: int = 52) -> list[str]:
    lines = [""]
    for name in names:
        if len(lines[-1]) + len(name) > width:
            lines.append("")
        lines[-1] += f"{', ' if lines[-1] else ''}{name}"
    return lines


DRAWINGS = {"architecture.svg": architecture, "round.svg": a_round, "leaves.svg": leaves}


def main() -> int:
    """Write every drawing."""
    for name, draw in DRAWINGS.items():
        write_text(PLACE / name, draw())
    return 0


if __name__ == "__main__":
    sys.exit(main())
