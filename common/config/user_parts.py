"""What a configuration names by import path: a method and a model of the user's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from common.code.imports import is_import_path
from common.config.keys import RUN_KEYS, STRATEGY, Leaf, closest_word, show, where_phrase
from common.errors import ConfigError
from common.methods import METHODS, Method, user_method
from common.models.registry import MODELS
from common.settings.sections import SECTIONS, module_of

ImportPolicy = Callable[[str, str], None]
"""Raises if a setting, by its key, may not name an import path."""

PART = "a part of its method"
"""What an import policy is given as the key, of the client and the settings that a method names."""

_NAMING = ("method", "model.name", "features.name", "dataset")
"""The settings that may be import paths."""

_TAKEN = {*METHODS, *SECTIONS, *RUN_KEYS, STRATEGY, "run", "base"}


def require_allowed(leaves: Mapping[str, Leaf], policy: ImportPolicy) -> None:
    """Put every import path that is named before ``policy``; nothing is imported."""
    for key in _NAMING:
        value = leaves[key].value if key in leaves else ""
        if not isinstance(value, str) or not is_import_path(value):
            continue
        if key == "dataset" and not module_of(
            value
        ):  # torchvision's sets and the hub's are no modules of anybody's
            continue
        policy(key, value)


def chosen_method(leaves: Mapping[str, Leaf], policy: ImportPolicy | None = None) -> Method | None:
    """Return the method of the user's own that is chosen; None for one of Nectar's and for a Flower strategy."""
    leaf = leaves.get("method")
    if leaf is None or not isinstance(leaf.value, str) or not is_import_path(leaf.value):
        return None
    where = where_phrase(leaf.where)
    try:
        found = user_method(leaf.value)
    except ConfigError as error:
        if not leaf.value.startswith("flwr."):
            raise ConfigError(f"method {where}: {error}") from error
        raise
    if found is None:
        return None
    if not re.fullmatch(r"[a-z][a-z0-9_]*", found.name) or found.name in _TAKEN:
        why = "is taken" if found.name in _TAKEN else "cannot name a section"
        raise ConfigError(
            f"method={leaf.value!r} {where} calls itself {found.name!r}, which {why}: choose another name, of small "
            "letters, digits and underscores."
        )
    for part in (found.client, found.settings) if policy else ():
        policy(PART, part)  # type: ignore[misc]
    return found


def model_problems(leaves: Mapping[str, Leaf]) -> list[str]:
    """Say of a model or network that is none which one is nearest."""
    problems = []
    for key in ("model.name", "features.name"):
        leaf = leaves.get(key)
        if leaf is None or not isinstance(leaf.value, str) or is_import_path(leaf.value):
            continue
        if leaf.value in MODELS or (key == "features.name" and not leaf.value):
            continue
        guess = closest_word(leaf.value, MODELS)
        hint = f", the nearest is {guess}" if guess else ""
        problems.append(
            f"{key}={show(leaf.value)} {where_phrase(leaf.where)} is unknown{hint}: there are "
            f"{', '.join(MODELS)}, and any of your own as package.module:callable."
        )
    return problems
