"""How many cores there are to share out."""

from __future__ import annotations

import os
import sys

from common.errors import ConfigError
from common.storage.limits import machine_cores

GRANTED = "NECTAR_CORES"
"""The variable with the most cores that a process may share out; a comparison sets it for its runs."""


def available_cores() -> int:
    """Count the cores that this process may use; ConfigError if ``NECTAR_CORES`` is no number of cores."""
    return min(machine_cores(), granted_cores() or sys.maxsize)


def granted_cores() -> int | None:
    """Return what ``NECTAR_CORES`` says, None without bounds; ConfigError if it is no number of cores."""
    named = os.environ.get(GRANTED, "")
    if not named:
        return None
    if not named.isdecimal() or int(named) < 1:
        raise ConfigError(
            f"{GRANTED}={named} must be a whole number of cores from 1: correct it, or leave it out."
        )
    return int(named)
