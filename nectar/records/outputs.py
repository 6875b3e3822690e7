"""Where a command's ``--output`` goes: refused before any work where it cannot take what is written."""

from __future__ import annotations

import os
from pathlib import Path

from common.config.text import from_home
from common.errors import ConfigError

REPORT = "report.html"
"""What a run's report is called in its record."""

_PAGES = (".html", ".htm")


def output_folder(given: str, *, fresh: bool = False) -> Path:
    """Return the folder that ``--output`` names.

    Parameters
    ----------
    given : str
        The option's value.
    fresh : bool
        Whether nothing may be there yet.

    Returns
    -------
    Path
        Absolute; it need not be there, the folder around it is.

    Raises
    ------
    ConfigError
        If it is empty, something else than a folder, there already though ``fresh``, or lies in no folder.
    """
    place = _absolute(given, "--output", "a folder")
    if fresh and os.path.lexists(place):
        raise ConfigError(
            f"{place} is there already and is left as it is: remove it, or name another folder with --output."
        )
    if os.path.lexists(place) and not place.is_dir():
        raise ConfigError(f"--output={given} is a file, and a folder is needed: name another one.")
    return _within_a_folder(place, given, "--output")


def output_page(given: str, named: str = "--output") -> Path:
    """Return the HTML file that a report goes to; one that is there is written again.

    Parameters
    ----------
    given : str
        Its path.

    Raises
    ------
    ConfigError
        If it is empty, has no name of an HTML file, is a folder, or lies in none.
    """
    place = _absolute(given, named, "an HTML file, such as report.html")
    if place.suffix.lower() not in _PAGES or place.is_dir():
        raise ConfigError(f"{named}={given} must name an HTML file, such as report.html.")
    return _within_a_folder(place, given, named)


def _absolute(given: str, named: str, kind: str) -> Path:
    if not given.strip() or "\0" in given:
        raise ConfigError(f"{named}={given!r} names nothing: give it {kind}.")
    return Path.cwd() / from_home(given)


def _within_a_folder(place: Path, given: str, named: str) -> Path:
    if not place.parent.is_dir():
        raise ConfigError(
            f"{named}={given} lies in a directory that is not there: make {place.parent} first."
        )
    return place
