"""What a tracker is told: numbers by name, and settings; no site's name, reason or path, and no token."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from common.config.keys import PATH_KEYS
from common.config.resolved import Config
from common.config.text import Scalar, dotted
from server_app.recorder import SPENT

#: parts of a line whose numbers are the run's, none a single site's
_TABLES = ("test", "validation", "sites", "train", "train_median", "copies", "seconds")

#: what an argument of a Flower strategy's may be called that nobody else is to read
_SECRET = re.compile(r"token|secret|passw|credential|api_?key", re.IGNORECASE)

#: what no tracker takes in a name
_ODD = re.compile(r"[^\w./ -]")


def figures_of(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a round's line by name, such as ``test/accuracy``.

    Of the sites there are means, sums and counts; of what they have spent of their privacy the largest epsilon.

    Parameters
    ----------
    line : mapping
        A line of metrics.jsonl.
    """
    found: dict[str, Any] = {}
    for table in _TABLES:
        found |= {f"{table}/{name}": value for name, value in (line.get(table) or {}).items()}
    for model, table in line.get("models", {}).items():
        found |= {f"models/{model}/{name}": value for name, value in table.items()}
    if line["round"]:  # before the first nobody was asked, and noughts would bend a smoothed curve
        for way, account in line.get("bytes", {}).items():
            found[f"bytes/{way}"] = sum(account.values())
        for kind in ("accepted", "rejected", "unevaluated"):
            found[f"replies/{kind}"] = len(line.get(kind, ()))
    spent = [one["epsilon"] for one in line.get("notes", {}).get(SPENT, {}).values()]
    found["privacy/epsilon"] = max(spent) if spent and None not in spent else None
    return {_ODD.sub("-", name): float(value) for name, value in found.items() if _counts(value)}


def settings_of(config: Config) -> dict[str, Scalar]:
    """Return the resolved settings by dotted key, without paths, secrets and what a tracker is told itself."""
    return {
        key: value
        for key, value in dotted(config.to_dict()).items()
        if key not in PATH_KEYS
        and not key.startswith("track.")
        and not _SECRET.search(key)
        and not _names_a_path(value)
    }


def _counts(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _names_a_path(value: Any) -> bool:
    """Whether a setting names a path of this machine, or several."""
    parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else []
    return any(
        part.startswith("~")
        or PurePosixPath(part).is_absolute()
        or PureWindowsPath(part).is_absolute()
        for part in parts
    )
