"""`nectar methods`: what methods there are, what sites send under each, and what data it takes."""

from __future__ import annotations

import inspect

from common.methods import METHODS, settings_class
from nectar.text import aligned

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
    return aligned([_HEAD, *map(_row, METHODS)], right=False)


def _row(name: str) -> tuple[str, ...]:
    cls, takes = settings_class(name), METHODS[name].takes
    disclosed = cls().disclosure()
    sent = disclosed.payload if disclosed is not None else "nothing"
    summary = (inspect.getdoc(cls) or "").partition("\n")[0]
    return (name, sent, *("yes" if kind in takes else "-" for kind in _KINDS), summary)
