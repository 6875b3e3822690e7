"""The one grammar of the command line: ``[EXPERIMENT | METHOD] [key=value ...]``, and its form for Flower.

Undotted keys are the run config's own, dotted ones go into its ``set``; options (``--name``) are the command's.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from common.config.consistency import FILE_KEY, SITES_KEY
from common.config.keys import CONFIG, INTERNAL_KEYS, PATH_KEYS, RUN_KEYS, SHORT, TYPED
from common.config.layers import home_of
from common.config.networks import START_KEY
from common.config.problems import nearest, nearest_key
from common.config.tables import experiment_names
from common.config.text import from_home, scalar
from common.errors import ConfigError
from common.methods import METHODS

RunConfig = dict[str, str | int | float | bool]

_NUMBER_KEYS = ("rounds", "seed")

#: folders of sites from which on none is looked for that has a comma in its name
_MANY = 50


def next_step(record: Path) -> str:
    """Say what is done with a record that is there."""
    return f"`nectar report {shlex.quote(str(record))}` draws it."


def typed(words: Iterable[str]) -> RunConfig:
    """Return what a run config holds of the words that were typed after ``nectar``."""
    return {TYPED: shlex.join(["nectar", *words])}


def parse_words(
    words: Iterable[str], directory: Path | None = None, *, file: str | None = None
) -> RunConfig:
    """Read ``[EXPERIMENT | METHOD] [key=value ...]`` as a run config.

    Paths are made absolute against ``directory`` (default: the working directory), because the run
    config is read in other processes with other ones.

    Parameters
    ----------
    words : iterable of str
        The words, without the command and its options.
    directory : Path, optional
        Where relative paths start.
    file : str, optional
        The user's own file of settings, as ``--config`` names it.

    Returns
    -------
    dict
        The run config. Its keys and values are checked by :func:`common.config.load`.

    Raises
    ------
    ConfigError
        If a word other than the first is no ``key=value``, a key is given twice, an experiment is named twice, or
        ``resume=`` names no record.
    """
    words = [*words, *([] if file is None else [f"{CONFIG}={file}"])]
    refuse_repeats(words)
    run_config: RunConfig = {}
    assigned: list[str] = []
    for position, word in enumerate(words):
        key, equals, value = word.partition("=")
        if key in SHORT:
            refuse_nothing(key, value)
            key = SHORT[key]
        if not equals:
            if position:
                raise ConfigError(
                    f"{word!r} is not key=value: only an experiment or a method, named first, has no '='."
                )
            run_config["method" if word in METHODS else "experiment"] = word
        elif "." in key:
            value = _own_paths(key, value, directory or Path.cwd())
            assigned.append(shlex.quote(f"{key}={value}"))
        elif key == "set":
            assigned.append(value)
        else:
            name = key_of(word)
            refuse_nothing(name, value)
            if name in ("experiment", "method") and name in run_config:
                raise ConfigError(f"two {name}s, {run_config[name]} and {value}: name one.")
            run_config[name] = _run_value(name, value, directory or Path.cwd())
    if assigned:
        run_config["set"] = " ".join(assigned)
    return run_config


def key_of(word: str) -> str:
    """Return the key of a ``key=value`` as the run config spells it; empty for any other word."""
    key, equals, _ = word.partition("=")
    if not equals:
        return ""
    if key in SHORT:
        return SHORT[key]
    hyphened = key.replace("_", "-")
    return hyphened if hyphened in PATH_KEYS else key


def refuse_repeats(words: Iterable[str]) -> None:
    """Refuse a key given twice, since only who typed it knows which was meant; ConfigError naming both values."""
    seen: dict[str, str] = {}
    for word in words:
        key = key_of(word)
        if key and key in seen:
            raise ConfigError(f"{key} is given twice, {seen[key]} and {word}: leave one out.")
        seen[key] = word


def refuse_nothing(key: str, value: str) -> None:
    """Refuse a key without a value, as an unset variable makes it, which begins another run, with a ConfigError."""
    if key == "resume" and not value.strip():
        raise ConfigError(
            "resume= names no record: give its directory, its id or latest, or leave resume out."
        )
    if not value.strip():
        raise ConfigError(f"{key}= has no value: give one, or leave {key} out.")


def _run_value(key: str, text: str, directory: Path) -> str | int | float | bool:
    """Read the value of a run-config key: numbers for counts, absolute paths, text otherwise."""
    if key in _NUMBER_KEYS:
        value = scalar(text)
        return text if value is None else value
    if key in (*PATH_KEYS, CONFIG) and text:
        return str(directory / from_home(text))
    return text


def _own_paths(key: str, text: str, directory: Path) -> str:
    """Make the paths of one's own data and weights absolute, as the run config's own are."""
    if key in (FILE_KEY, START_KEY) and text and not text.startswith("torchvision:"):
        return str(directory / from_home(text))
    if key == SITES_KEY and text:
        parts = text.split(",")
        _refuse_commas(parts, directory)
        return ",".join(str(directory / from_home(part.strip())) for part in parts)
    return text


def _refuse_commas(parts: list[str], directory: Path) -> None:
    """Refuse folders of sites where one is there whose name has a comma, which ends a path; ConfigError."""
    for start in range(len(parts) - 1) if len(parts) < _MANY else ():
        for end in range(start + 2, len(parts) + 1):
            folder = directory / from_home(",".join(parts[start:end]).strip())
            if folder.is_dir():
                raise ConfigError(
                    f"a comma in {SITES_KEY} ends a path, and {folder} has one in its name: rename the folder, or "
                    "give a link to it without one."
                )


def meant_by(name: str) -> str | None:
    """Return the key that an option's name, without its dashes, was meant as; None if there is none like it."""
    from common.config.schema import known_keys

    run_keys = [key for key in RUN_KEYS if key not in INTERNAL_KEYS]
    known = known_keys()
    if name in (*run_keys, *known):
        return name
    return home_of(name, known) or nearest(name, run_keys) or nearest_key(name, known)


def completions(incomplete: str) -> list[str]:
    """Return the words of settings that begin so: methods, experiments, and keys with their ``=``."""
    from common.config.schema import known_keys

    keys = [f"{key}=" for key in (*RUN_KEYS, *known_keys()) if key not in INTERNAL_KEYS]
    words = [*METHODS, *experiment_names(), *keys]
    return [word for word in words if word.startswith(incomplete)]


def to_flwr(run_config: Mapping[str, str | int | float | bool]) -> str:
    """Write a run config as the argument of ``flwr run -c``.

    That argument is TOML, but Flower cuts it up by a pattern which knows no escaped quotes, and
    takes an argument that ends in ``.toml`` for a file. So texts are basic strings whose quotes,
    backslashes and control characters are written as code points.
    """
    return " ".join(f"{key}={_toml(value)}" for key, value in run_config.items() if value != "")


def _toml(value: str | int | float | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    return '"' + "".join(_toml_character(character) for character in value) + '"'


def _toml_character(character: str) -> str:
    if character in "\"'\\" or not (character.isprintable() or character > "\x9f"):
        return f"\\u{ord(character):04x}"
    return character
