"""Where a report goes, and writing it there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from common.config.text import from_home
from common.errors import ConfigError
from common.files import write_text

if TYPE_CHECKING:
    from nectar.past_run import PastRun

NAME = "report.html"
"""What a run's report is called in its record."""


def destination(given: str, named: str) -> Path:
    """Return the file that a report is to be written to, refusing a place that cannot take one.

    Parameters
    ----------
    given : str
        The path.
    named : str
        What a message calls it, such as ``--output``.

    Raises
    ------
    ConfigError
        If it names no HTML file, or one in a directory that is not there.
    """
    to = from_home(given).absolute()
    if to.suffix.lower() not in (".html", ".htm") or to.is_dir():
        raise ConfigError(f"{named}={given} must name an HTML file, such as {NAME}.")
    if not to.parent.is_dir():
        raise ConfigError(f"{named}={given} lies in a directory that is not there: make it first.")
    return to


def write(runs: Sequence[PastRun], to: Path, named: str) -> None:
    """Write the report on ``runs`` to ``to``.

    Raises
    ------
    ConfigError
        If it cannot be written there.
    """
    from nectar.report.page import page
    from nectar.report.view import View

    text = page([View(run) for run in runs])
    try:
        write_text(to, text)
    except OSError as error:
        raise ConfigError(
            f"{to} cannot be written ({error.strerror}): choose another place with {named}."
        ) from None
