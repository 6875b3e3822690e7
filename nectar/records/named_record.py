"""Which record is meant: its directory, its id in the output directory, or ``latest``."""

from __future__ import annotations

from pathlib import Path

from common.config.loading import load
from common.errors import ConfigError
from server_app.record import RunDirectory

LATEST = "latest"
"""The record that was begun last."""


def record_at(name: str | Path, output_dir: str = "") -> Path:
    """Return the directory of a record.

    Parameters
    ----------
    name : str or Path
        Its directory, its id, or ``latest``. What is there as a directory, or is a path, is that path.
    output_dir : str, optional
        Where ids are looked up (default: the configuration's).

    Raises
    ------
    ConfigError
        If the latest is asked for where there is none.
    """
    place = Path(name).expanduser().absolute()
    if place.exists() or Path(name).name != str(name):
        return place
    output = load({"output-dir": output_dir}).output_dir
    if str(name) != LATEST:
        return output / name if RunDirectory(output / name).is_there() else place
    # An id begins with the time at which its run began.
    records = sorted(path for path in output.glob("[!.]*") if RunDirectory(path).is_there())
    if not records:
        raise ConfigError(f"there is no record in {output}, and so no {LATEST} one.")
    return records[-1]
