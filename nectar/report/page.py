"""The report as a page: jinja2 templates filled from views of one or several runs, one file that loads nothing.

`page` returns it, `write` writes it for records. Whatever comes from a record is escaped; what is markup already are
charts of our own alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from common.errors import ConfigError
from common.storage.files import write_text
from nectar.report.text import MISSING, plural, share, size

if TYPE_CHECKING:
    from nectar.records.record import RunRecord
    from nectar.report.view import View

#: bytes of pictures that all runs of a page may take
PICTURES = 8_000_000

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""What a browser lets the page do: show pictures that are in it."""

_TEMPLATES = Path(__file__).with_name("templates")

COLOURS = (_TEMPLATES / "colours.css").read_text(encoding="utf-8")
"""Colours by role, of a page or of a drawing that stands alone."""


def write(runs: Sequence[RunRecord], to: Path, named: str) -> None:
    """Write the report on ``runs`` to ``to``; ConfigError if it cannot be written there."""
    text = page_of(runs)
    try:
        write_text(to, text)
    except OSError as error:
        raise ConfigError(
            f"{to} cannot be written ({error.strerror}): choose another place with {named}."
        ) from None


def page_of(runs: Sequence[RunRecord]) -> str:
    """Return the report on ``runs``; ConfigError, before any work, if a record names what may not be imported."""
    from nectar.report.view import View

    views = [View(run) for run in runs]
    for view in views:
        _ = view.method, view.config
    return page(views)


def page(views: Sequence[View]) -> str:
    """Return the report on one or several runs as a whole HTML document that loads nothing."""
    from nectar.report import curves

    runs = [shown(view, PICTURES // len(views)) for view in views]
    if len(views) == 1:
        return render("page.html", title=views[0].title, runs=runs)
    return render(
        "page.html",
        title=f"{len(views)} runs side by side",
        runs=runs,
        together=curves.side_by_side(views),
        charts=curves.of_groups(views),
        by_class=curves.classes_side_by_side(views),
    )


def shown(view: View, picture_bytes: int) -> dict[str, Any]:
    """Return what the page shows of one run, by the names that its template has for it."""
    from common.wire.synthetic_images import Copies
    from nectar.audit.images import examining as outcome
    from nectar.report import curves, pictures, privacy, tables

    return {
        "view": view,
        "tables": tables,
        "privacy": privacy,
        "copies": Copies.recorded(view.rounds),
        "charts": curves.of_run(view),
        "images": pictures.of_run(view, pictures.Budget(picture_bytes)),
        "heading": pictures.heading(view, 1),
        "audit": outcome,
    }


def render(template: str, **values: Any) -> str:
    """Return a template filled with values, which are escaped."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_visible,
    )
    css = COLOURS + (_TEMPLATES / "style.css").read_text(encoding="utf-8")
    made.globals |= {"css": css, "policy": POLICY, "missing": MISSING}
    made.filters |= {"share": share, "size": size, "plural": plural}
    return made


def _visible(value: Any) -> Any:
    """Return text in which what does not print, such as a change of direction, is shown as a replacement."""
    if not isinstance(value, str) or hasattr(value, "__html__") or value.isprintable():
        return value
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in value
    )
