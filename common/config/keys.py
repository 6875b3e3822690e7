"""The run config's keys, and a value together with the place it was given."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from common.errors import ConfigError
from common.settings.sections import RunSettings

PATH_KEYS = ("output-dir", "data-dir", "resume")
FETCH = "fetch"
"""The key of a run that trains nothing: its ServerApp sends a record home."""

CONFIG = "config"
"""The key that names a file of settings of the user's own; it is read where it was typed, and never travels."""

ROUND, BEST = "round", "best"
"""The key that says after which round's checkpoint ``resume`` begins again, and the word for the best one's."""

RESUME_CODE, ACCEPT = "resume_code", "accept"
"""The key, and its value, by which a run goes on with other code than the one that its record was written by."""

RESOLVED, YES = "resolved", "yes"
"""The key, and its value, of a run config that states all there is to state: no file of settings is read for it."""

TYPED = "typed"
"""The key with the words that a user typed; only the record takes note of them."""

BY = "by"
"""The key that says who submitted a run, as they say; the SuperLink's database keeps it, and no record does."""

INTERNAL_KEYS = (FETCH, RESOLVED, TYPED, BY)
"""What programs say to each other."""

RUN_KEYS = (
    "experiment",
    *RunSettings.model_fields,
    *PATH_KEYS,
    ROUND,
    RESUME_CODE,
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


# ---- problems ------------------------------------------------------------------------------------
# Sentences about settings that cannot be used: what, where it was given, and what is allowed.

COMMAND_LINE = "the command line"
_SHOWN, _LISTED = 3, 40


def where_phrase(where: str) -> str:
    """Describe where a value was given: ``"on the command line"``, ``"in conf/dataset/digits.yaml"``."""
    return f"on {where}" if where == COMMAND_LINE else f"in {where}"


def show(value: Any) -> str:
    """Show a value as it would be typed in YAML; a text in quotes, so that ``'3'`` is not 3."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a mapping"
    return repr(value)


def closest_word(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice most like a word, if any is like it at all."""
    found = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.5)
    return found[0] if found else None


def near(word: str, choices: Iterable[str]) -> str:
    """Return which choice is most like a word, and up to two others that are nearly as like it; nothing if none is."""
    found = difflib.get_close_matches(word, list(choices), n=3, cutoff=0.5)
    likeness = [difflib.SequenceMatcher(None, choice, word).ratio() for choice in found]
    found = [
        choice for choice, like in zip(found, likeness, strict=True) if like > likeness[0] - 0.04
    ]
    if len(found) < 2:
        return f", the nearest is {found[0]}" if found else ""
    return f", the nearest are {', '.join(found[:-1])} and {found[-1]}"


def nearest_key(key: str, known: Sequence[str]) -> str | None:
    """Return the known dotted key most like a mistyped one.

    A slip in the name is likelier than in the section, so names of the same section come first,
    also those of which it is a word (``feddm.lr``: ``feddm.global_lr``); then the same name in
    another section; then whatever looks alike.
    """
    section, dot, name = key.rpartition(".")
    same = {other.removeprefix(f"{section}."): other for other in known if dot and section in other}
    if found := closest_word(name, same):
        return same[found]
    parts = [other for short, other in same.items() if name in short.split("_")]
    elsewhere = [other for other in known if other.rpartition(".")[2] == name]
    likely = [*parts, *elsewhere]
    return likely[0] if likely else closest_word(key, known)


def unknown(
    what: str, word: str, where: str, choices: Sequence[str], extra: str = ""
) -> ConfigError:
    """Build the error for a name that there is none of: the nearest one, and the list where it is short."""
    guess = closest_word(word, choices)
    hint = f", the nearest is {guess}" if guess else ""
    listed = f"there are {', '.join(choices) or 'none'}"
    if len(choices) > _LISTED:
        listed = "`nectar config --help` lists all"
    return ConfigError(f"{what}={word!r} {where_phrase(where)} is unknown{hint}: {listed}{extra}.")


def fail(problems: Sequence[str]) -> NoReturn:
    """Raise the first few problems, one sentence a line."""
    lines = list(problems[:_SHOWN])
    if len(problems) > _SHOWN:
        lines.append(f"Not shown: {len(problems) - _SHOWN} more of this kind.")
    raise ConfigError("\n".join(lines))
