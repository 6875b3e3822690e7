"""What a site says of itself: the keys of its SuperNode's node config, which nobody else can set."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

from common.config.problems import nearest
from common.errors import FederationError
from common.settings.base import AMOUNTS

Limits = Mapping[str, object]

AMOUNT_KEYS = {f"max-{amount}": amount for amount in AMOUNTS}
"""The keys that bound what settings declare as amounts, each with the amount."""

KEYS = (
    *("site", "partition-id", "num-partitions", "data", "state-dir", "data-root", "device"),
    *("cores", "allow-imports", "allow-download", "allow-methods", "allow-start"),
    *(*AMOUNT_KEYS, "max-classes", "max-parameters", "min-class", "roll-call-seconds"),
    *("privacy-epsilon", "privacy-delta"),
    *("review-dir", "review-command", "review-seconds", "simulated"),
)
"""Every key that there is; ``simulated`` is the in-process engine's own."""


def check_keys(node_config: Mapping[str, object]) -> None:
    """Refuse a key that there is not: a veto with a slip in its name would veto nothing.

    Raises
    ------
    FederationError
        If there is one; the nearest is named.
    """
    for key in node_config:
        if key in KEYS:
            continue
        guess = nearest(key, KEYS)
        hint = f"did you mean {guess}?" if guess else f"there are {', '.join(KEYS[:-1])}"
        raise FederationError(
            f"the node config has the key {key[:60]!r}, which means nothing: {hint}"
        )


def absolute(key: str, named: object) -> Path:
    """Return a path of the node config's.

    Raises
    ------
    FederationError
        If it is relative.
    """
    path = Path(str(named))
    if not path.is_absolute():
        raise FederationError(
            f"the node config's {key} '{named}' is relative: give an absolute path",
            told=f"the node config's {key} is relative: its owner gives an absolute path",
        )
    return path


def number(node_config: Mapping[str, object], key: str, least: int = 0) -> int | None:
    """Return a whole number, or None where the node config does not name ``key``.

    Raises
    ------
    FederationError
        If it is another thing, or less than ``least``.
    """
    given = node_config.get(key)
    if given is None:
        return None
    if type(given) is not int or given < least:
        raise FederationError(
            f"the node config says {key}={given!r}: give a whole number, {least} or more"
        )
    return given


def amount(node_config: Mapping[str, object], key: str, *, below: float = math.inf) -> float | None:
    """Return a number above 0 and below ``below``, or None where the node config does not name ``key``.

    Raises
    ------
    FederationError
        If it is another thing.
    """
    given = node_config.get(key)
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < below:
        most = "" if below == math.inf else f" and below {below:g}"
        raise FederationError(f"the node config says {key}={given!r}: give a number above 0{most}")
    return float(given)


def switch(node_config: Mapping[str, object], key: str) -> bool:
    """Return whether the node config says ``key=true``.

    Raises
    ------
    FederationError
        If it says anything but true or false.
    """
    given = node_config.get(key, False)
    if not isinstance(given, bool):
        raise FederationError(f"the node config says {key}={given!r}: write true or false")
    return given


def words(node_config: Mapping[str, object], key: str) -> tuple[str, ...] | None:
    """Return words with spaces or commas between them, or None where the node config does not name ``key``.

    Raises
    ------
    FederationError
        If it is no text.
    """
    given = node_config.get(key)
    if given is None:
        return None
    if not isinstance(given, str):
        raise FederationError(
            f"the node config says {key}={given!r}: write words in quotes, with spaces between them"
        )
    return tuple(word for word in re.split(r"[\s,]+", given.strip()) if word)
