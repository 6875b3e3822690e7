"""The run config's keys, and a value together with the place it was given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from common.errors import ConfigError, fold, near, nearest
from common.settings.sections import SECTIONS, RunSettings

PATH_KEYS = ("output-dir", "data-dir", "resume")
SETTINGS_OF = "settings-of"
"""The key of a run that trains nothing: its ServerApp prints the settings of the record of that id."""

CONFIG = "config"
"""The key that names a file of settings of the user's own; it is read where it was typed, and never sent."""

ROUND = "round"
"""The key by which earlier releases went back to a round; it is refused with what takes its place."""

RESUME_CODE, ACCEPT = "resume_code", "accept"
"""The key, and its value, by which a run resumes with other code than that which wrote its record."""

RESOLVED, YES = "resolved", "yes"
"""The key, and its value, of a run config that states all there is to state: no file of settings is read for it."""

TYPED = "typed"
"""The key with the words that a user typed; only the record takes note of them."""

BY = "by"
"""The key that says who submitted a run, as they say; the SuperLink's database keeps it, and no record does."""

INTERNAL_KEYS = (SETTINGS_OF, RESOLVED, TYPED, BY)
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

TYPED_KEYS = tuple(key for key in RUN_KEYS if key not in INTERNAL_KEYS)
"""Those that a user types."""

SHORT = {"track": "track.by", "model": "model.name"}
"""Settings that may be typed by their section's name alone."""

FILE_KEY, TABLES_KEY, SITES_KEY = "data.file", "data.sites", "images.sites"
COLUMNS_KEY, START_KEY = "data.columns", "model.start"

STRATEGY = "strategy"
"""The section with the constructor's arguments of a strategy named by import path."""


@dataclass(frozen=True)
class Stated:
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


_ELSEWHERE = {
    word: meant
    for meant, words in {
        "federation.sites": "sites clients numclients numsupernodes numpartitions",
        "federation.participation": "fractionfit fractiontrain",
        "rounds": "numrounds numserverrounds",
        "fedavg.epochs": "localepochs numepochs",
        "fedavg.local_optimizer": "optimizer",
        "batch": "batchsize",
        "lr": "learningrate",
        "compute.device=cuda": "gpu gpus numgpus cuda",
        "track=mlflow or track=tensorboard": "wandb logger mlflow tensorboard",
    }.items()
    for word in words.split()
}
"""Words of Flower and PyTorch, folded, and our keys; FedAvg's become the chosen method's own, if it has one."""


def nearest_key(key: str, known: Sequence[str], method: object = "") -> str:
    """Return the known key that a mistyped one was most likely meant as, or the words to type instead.

    The same key in another spelling comes first, then what the word means in Flower or PyTorch. A slip in the name is
    likelier than in the section, so its other names come next, also those of which it is a word (``feddm.lr``:
    ``feddm.global_lr``); then the same name in another section; then any similar name. Without a section a key may
    be of any, its method's first.
    """
    section, _, name = key.replace(":", ".").rpartition(".")
    home, meant = section or method, _ELSEWHERE.get(fold(name), name)
    ranked = sorted(known, key=lambda other: not other.startswith(f"{home}."))
    spelt = {fold(other): other for other in known}
    short = meant.removeprefix("fedavg.")
    for guess in (key, f"{home}.{name}", f"{home}.{short}", meant):
        if fold(guess) in spelt:
            return spelt[fold(guess)]
    if "=" in meant:
        return meant
    inside = {other.rpartition(".")[2]: other for other in reversed(ranked) if section in other}
    if found := nearest(short, inside, 0.65):
        return inside[found]
    likely = [other for part, other in reversed(inside.items()) if short in part.split("_")]
    likely += [other for other in ranked if other.rpartition(".")[2] == short]
    return likely[0] if likely else nearest(key, known, 0.65)


def not_a_setting(key: str, where: str, guess: str, method: str) -> str:
    """Describe a key that does not exist: which one was meant, or where all are listed."""
    if not guess:
        return f"{key} {where_phrase(where)} is not a setting: `nectar config --help` lists all."
    what = "lacks its section" if guess.endswith(f".{key}") else "is not a setting"
    home, dot, _ = guess.partition(".")
    others = dot and "." not in key and home not in (*SECTIONS, method)
    note = f" This run's method is {method}." if others else ""
    return f"{key} {where_phrase(where)} {what}: did you mean {guess}?{note}"


def unknown(
    what: str, word: str, where: str, choices: Sequence[str], extra: str = ""
) -> ConfigError:
    """Build the error for an unknown name: the nearest one, and the list if it is short."""
    listed = f"there are {', '.join(choices) or 'none'}"
    if len(choices) > _LISTED:
        listed = "`nectar config --help` lists all"
    return ConfigError(
        f"{what}={word!r} {where_phrase(where)} is unknown{near(word, choices)}: {listed}{extra}."
    )


def fail(problems: Sequence[str]) -> NoReturn:
    """Raise the first few problems, one sentence a line."""
    lines = list(problems[:_SHOWN])
    if len(problems) > _SHOWN:
        lines.append(f"Not shown: {len(problems) - _SHOWN} more of this kind.")
    raise ConfigError("\n".join(lines))
