"""The run config's keys, and a value together with the place it was given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from common.settings.sections import RunSettings

PATH_KEYS = ("output-dir", "data-dir", "resume")
FETCH = "fetch"
"""The key of a run that trains nothing: its ServerApp sends a record home."""

RUN_KEYS = ("experiment", *RunSettings.model_fields, *PATH_KEYS, "set", FETCH)
"""The run config's keys, as in pyproject.toml."""

STRATEGY = "strategy"
"""The section with the constructor's arguments of a strategy named by import path."""


@dataclass(frozen=True)
class Leaf:
    """A value and where it was given."""

    value: Any
    where: str
