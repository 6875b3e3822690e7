"""The report as a page: jinja2 templates filled from views of one or several runs, one file that loads nothing.

`page` returns it, `write` writes it for records. Whatever comes from a record is escaped; what is markup already are
charts of our own alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from common.config.user_parts import ImportPolicy
from common.errors import ConfigError
from common.storage.files import write_text
from common.wire.images import Copies
from nectar.audit.images import examining
from nectar.records.record import RunRecord
from nectar.report import curves, pictures, privacy, tables
from nectar.report.view import View
from nectar.text import MISSING, plural, share, size

#: characters of pictures that all runs of a page may take
PICTURES = 11_000_000

REFRESH = 10
"""Seconds after which a browser loads the page of a run that is going on again."""

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""What a browser lets the page do: show pictures that are in it."""

_TEMPLATES = Path(__file__).with_name("templates")

COLOURS = (_TEMPLATES / "colours.css").read_text(encoding="utf-8")
"""Colours by role, of a page or of a separate drawing."""


def follow(
    directories: Sequence[Path], policy: ImportPolicy, to: Path, *, images: bool = True
) -> None:
    """Write the report on the runs in ``directories`` to ``to``, anew whenever one has changed, until all have ended.

    A browser loads the page again by itself as long as a run is going on.
    """
    known = None
    while True:
        runs = [RunRecord.open(directory, policy) for directory in directories]
        going = any(run.outcome == "running" for run in runs)
        state = [(run.outcome, len(run.rounds)) for run in runs]
        if state != known:
            write(runs, to, "--output", images=images, refresh=REFRESH if going else 0)
            known = state
        if not going:
            return
        time.sleep(REFRESH / 2)


def write(
    runs: Sequence[RunRecord], to: Path, named: str, *, images: bool = True, refresh: int = 0
) -> None:
    """Write the report on ``runs`` to ``to``, with ``images`` or without; loaded again after ``refresh`` seconds.

    Raises
    ------
    ConfigError
        If it cannot be written there; before any work, if a record names what may not be imported.
    """
    views = [View(run) for run in runs]
    for view in views:  # a record that names what may not be imported is refused before any work
        _ = view.method, view.config
    text = page(views, images=images, refresh=refresh)
    try:
        write_text(to, text)
    except OSError as error:
        raise ConfigError(
            f"{to} cannot be written ({error.strerror}): choose another place with {named}."
        ) from None


def page(views: Sequence[View], *, images: bool = True, refresh: int = 0) -> str:
    """Return the report on one or several runs as an HTML document that loads nothing."""
    most = PICTURES // len(views) if images else None
    runs = [_values(view, most) for view in views]
    if len(views) == 1:
        return render("page.html", title=views[0].title, runs=runs, refresh=refresh)
    return render(
        "page.html",
        title=f"{len(views)} runs side by side",
        runs=runs,
        refresh=refresh,
        together=curves.side_by_side(views),
        charts=curves.of_groups(views),
        by_class=curves.classes_side_by_side(views),
    )


def _values(view: View, most: int | None) -> dict[str, Any]:
    """Return what the page shows of one run, by the names that its template has for it; None: no pictures."""
    return {
        "view": view,
        "tables": tables,
        "privacy": privacy,
        "copies": Copies.recorded(view.rounds),
        "charts": curves.of_run(view),
        "images": pictures.Images("The images were left out of this page.")
        if most is None
        else pictures.of_run(view, most),
        "heading": pictures.heading(view, 1),
        "audit": examining,
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
