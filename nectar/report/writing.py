"""Writing a report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import ConfigError
from common.storage.files import write_text

if TYPE_CHECKING:
    from nectar.records.past_run import PastRun

NAME = "report.html"
"""What a run's report is called in its record."""


def page_of(runs: Sequence[PastRun]) -> str:
    """Return the report on ``runs``; ConfigError if a record names what may not be imported."""
    from nectar.report.page import page
    from nectar.report.view import View

    views = [View(run) for run in runs]
    for view in views:
        view.require_named()
    return page(views)


def write(runs: Sequence[PastRun], to: Path, named: str) -> None:
    """Write the report on ``runs`` to ``to``; ConfigError if it cannot be written there."""
    text = page_of(runs)
    try:
        write_text(to, text)
    except OSError as error:
        raise ConfigError(
            f"{to} cannot be written ({error.strerror}): choose another place with {named}."
        ) from None
