"""The number of cores available to a run."""

from __future__ import annotations

import os
import sys

from common.errors import ConfigError
from common.storage.limits import machine_cores

GRANTED = "NECTAR_CORES"
"""The variable with the most cores that a process may share out; a comparison sets it for its runs."""


def available_cores() -> int:
    """Return the number of cores that this process may use; ConfigError if ``NECTAR_CORES`` is not valid."""
    return min(machine_cores(), granted_cores() or sys.maxsize)


def granted_cores() -> int | None:
    """Return the value of ``NECTAR_CORES``, None if it is unset; ConfigError if it is not a number of cores."""
    named = os.environ.get(GRANTED, "")
    if not named:
        return None
    if not named.isdecimal() or int(named) < 1:
        raise ConfigError(
            f"{GRANTED}={named} must be an integer, the number of cores, at least 1: correct it, or unset it."
        )
    return int(named)
