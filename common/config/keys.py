"""The run config's keys, and a value together with the place it was given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from common.settings.sections import RunSettings

PATH_KEYS = ("output-dir", "data-dir", "resume")
FETCH = "fetch"
"""The key of a run that trains nothing: its ServerApp sends a record home."""

CONFIG = "config"
"""The key that names a file of settings of the user's own; it is read where it was typed, and never travels."""

ROUND, BEST = "round", "best"
"""The key that says after which round's checkpoint ``resume`` begins again, and the word for the best one's."""

RESOLVED, YES = "resolved", "yes"
"""The key, and its value, of a run config that states all there is to state: no file of settings is read for it."""

TYPED = "typed"
"""The key with the words that a user typed; only the record takes note of them."""

INTERNAL_KEYS = (FETCH, RESOLVED, TYPED)
"""What programs say to each other."""

RUN_KEYS = (
    "experiment",
    *RunSettings.model_fields,
    *PATH_KEYS,
    ROUND,
    "set",
    CONFIG,
    *INTERNAL_KEYS,
)
"""The run config's keys: those of pyproject.toml, and ``config``."""

SHORT = {"track": "track.by", "model": "model.name"}
"""Settings that may be typed by their section's name alone."""

STRATEGY = "strategy"
"""The section with the constructor's arguments of a strategy named by import path."""


@dataclass(frozen=True)
class Leaf:
    """A value and where it was given."""

    value: Any
    where: str
