"""Checks of a command's ``--output`` before any work, and the settings of a resumed record."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.config.keys import CONFIG
from common.config.resolved import Config
from common.config.text import from_home, parse_set
from common.errors import ConfigError
from nectar.records.record import record_at
from server_app.run_directory import RunDirectory

_PAGES = (".html", ".htm")


def require_room(config: Config) -> None:
    """Check that a new record can be written, by making and removing a folder; ConfigError if not."""
    if config.resume:
        return
    directory = config.output_dir
    try:
        there = next(place for place in (directory, *directory.parents) if place.exists())
        Path(tempfile.mkdtemp(dir=there, prefix=".room-")).rmdir()
    except OSError as error:
        raise ConfigError(
            f"no record can be made in {directory} ({error.strerror}): free some space, or choose another output-dir."
        ) from None


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
        Absolute; neither it nor the folders around it need be there.

    Raises
    ------
    ConfigError
        If it is empty, something else than a folder, there already though ``fresh``, or is below a file.
    """
    place = _absolute(given, "--output", "a folder")
    if fresh and os.path.lexists(place):
        raise ConfigError(
            f"{place} exists and is not overwritten: remove it, or name another folder with --output."
        )
    if os.path.lexists(place) and not place.is_dir():
        raise ConfigError(f"--output={given} is a file, but must be a folder: name another one.")
    around = next(above for above in place.parents if os.path.lexists(above))
    if not around.is_dir():
        raise ConfigError(f"--output={given} is below {around}, which is a file: name another one.")
    return place


def output_page(given: str, named: str = "--output") -> Path:
    """Return the HTML file of a report; an existing one is overwritten.

    Parameters
    ----------
    given : str
        Its path.

    Raises
    ------
    ConfigError
        If it is empty, has no name of an HTML file, is a folder, or is in none.
    """
    place = _absolute(given, named, "an HTML file, such as report.html")
    if place.suffix.lower() not in _PAGES or place.is_dir():
        raise ConfigError(f"{named}={given} must name an HTML file, such as report.html.")
    if not place.parent.is_dir():
        raise ConfigError(
            f"{named}={given} is in a directory that does not exist: make {place.parent} first."
        )
    return place


def _absolute(given: str, named: str, kind: str) -> Path:
    if not given.strip() or "\0" in given:
        raise ConfigError(f"{named}={given!r} is empty: give {kind}.")
    return Path.cwd() / from_home(given)


# ---- resume --------------------------------------------------------------------------------------
# The run config of `resume=RECORD`: the record's, overridden by the command line.

Scalar = str | int | float | bool

_FORGET = "ridge.forget"


def with_recorded(run_config: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return ``run_config``, filled up from the record that it resumes, if any; ConfigError if that is not a record."""
    directory = str(run_config.get("resume", ""))
    if not directory:
        return dict(run_config)
    if Path(directory).parent == Path.cwd():  # where a bare word ends up
        found = record_at(Path(directory).name, str(run_config.get("output-dir", "")))
        run_config, directory = {**run_config, "resume": str(found)}, str(found)
    record = RunDirectory(Path(directory))
    stated = record.stated()
    if stated is None:
        raise ConfigError(f"resume={directory} {record.why_not()}")
    return over_recorded(recorded_config(stated), run_config)


def recorded_config(provenance: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return the run config that a record's provenance states, with the rounds that it was last to go to.

    Raises
    ------
    KeyError, TypeError, ValueError
        If it is not a provenance.
    """
    recorded: dict[str, Scalar] = dict(provenance["run-config"])
    rounds = [time["rounds"] for time in provenance.get("continued", []) if "rounds" in time]
    return {**recorded, **({"rounds": rounds[-1]} if rounds else {})}


def over_recorded(recorded: Mapping[str, Scalar], typed: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return a record's run config, what was typed over it.

    Raises
    ------
    ConfigError
        If a file was named, since a run keeps its own settings; or a site is to be forgotten that is in no sum.
    """
    given = {key: value for key, value in typed.items() if value != ""}
    if CONFIG in given:
        raise ConfigError("resume continues a run with its own settings: leave --config out.")
    method = str({**recorded, **given}.get("method", ""))
    if method != "ridge" and parse_set(str(given.get("set", ""))).get(_FORGET):
        raise ConfigError(
            f"{_FORGET} removes a site from sums, but what method={method} learned from a site cannot be removed: run "
            "again without the site."
        )
    settings = " ".join(str(s["set"]) for s in (recorded, given) if s.get("set"))
    return {**recorded, **given, "set": settings}
