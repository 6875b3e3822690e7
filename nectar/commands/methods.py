"""`nectar methods`: what methods there are, what sites send under each, and what data it takes."""

from __future__ import annotations

import inspect

from common.methods import METHODS, settings_class

HELP = """\
Lists the methods: what leaves a site in a round by the default settings, which data a method takes, and what it is.
`nectar config --help METHOD` has a method's settings.
"""

_HEAD = ("method", "a site sends", "images", "tables", "series", "text", "what it is")
_KINDS = ("images", "table", "series", "text")


def main() -> int:
    """Print the table."""
    print(listing())
    return 0


def listing() -> str:
    """Return the table of methods, a line each."""
    rows = [_HEAD, *(_row(name) for name in METHODS)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEAD))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def _row(name: str) -> tuple[str, ...]:
    cls, takes = settings_class(name), METHODS[name].takes
    disclosed = cls().disclosure()
    sent = disclosed.payload if disclosed is not None else "nothing"
    summary = (inspect.getdoc(cls) or "").partition("\n")[0]
    return (name, sent, *("yes" if kind in takes else "-" for kind in _KINDS), summary)
