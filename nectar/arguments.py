"""The one grammar of the command line: ``[EXPERIMENT | METHOD] [key=value ...]``, and its form for Flower.

Undotted keys are the run config's own, dotted ones go into its ``set``; options (``--name``) are the command's.
"""

from __future__ import annotations

import getpass
import itertools
import shlex
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from logging import getLogger
from pathlib import Path

from common.code.imports import is_import_path
from common.config.keys import (
    BY,
    CONFIG,
    FILE_KEY,
    PATH_KEYS,
    SHORT,
    SITES_KEY,
    START_KEY,
    TABLES_KEY,
    TYPED,
    TYPED_KEYS,
    nearest_key,
)
from common.config.loading import load
from common.config.resolved import Config
from common.config.text import from_home, scalar
from common.config.user_parts import ImportPolicy
from common.errors import ConfigError, DataError
from common.methods import METHODS
from common.settings.sections import RunSettings, SharedSections, is_user_data, kind_of

RunConfig = dict[str, str | int | float | bool]

_NUMBER_KEYS = ("rounds", "seed")


def next_step(record: Path) -> str:
    """Return the hint that a finished run prints about its record."""
    return f"to see it: `nectar report {shlex.quote(str(record))}`"


def submitter() -> RunConfig:
    """Return what a run config holds of who submits it: a user and a machine, as they say."""
    with suppress(OSError, KeyError):
        return {BY: f"{getpass.getuser()}@{socket.gethostname()}"[:100]}
    return {}


def typed_command(words: Iterable[str]) -> RunConfig:
    """Return what a run config holds of the words that were typed after ``nectar``."""
    return {TYPED: shlex.join(["nectar", *words])}


def parse_arguments(
    words: Iterable[str], directory: Path | None = None, *, file: str | None = None
) -> RunConfig:
    """Read ``[EXPERIMENT | METHOD] [key=value ...]`` as a run config; :func:`common.config.load` checks its values.

    Paths are made absolute against ``directory`` (default: the working directory), because the run config is read in
    other processes with other ones. ``file`` is the user's own file of settings, as ``--config`` names it. ConfigError
    if a word other than the first is no ``key=value``, a key is given twice, an experiment is named twice, or
    ``resume=`` names no record.
    """
    words = [*words, *([] if file is None else [f"{CONFIG}={file}"])]
    if "=" in words:
        raise ConfigError("a setting is one word: write key=value without spaces around '='.")
    refuse_repeats(words)
    run_config: RunConfig = {}
    assigned: list[str] = []
    for position, word in enumerate(words):
        key, equals, value = word.partition("=")
        if key in SHORT:
            refuse_nothing(key, value)
            key = SHORT[key]
        if not equals:
            if position and word in METHODS:
                raise ConfigError(
                    f"a run has one method, and {word!r} is another: `nectar compare` takes several."
                )
            if position:
                raise ConfigError(
                    f"{word!r} is not key=value: write rounds=3, without spaces; a method or an experiment comes first."
                )
            method = word in METHODS or is_import_path(word)
            run_config["method" if method else "experiment"] = word
        elif "." in key:
            value = _own_paths(key, value, directory or Path.cwd())
            assigned.append(shlex.quote(f"{key}={value}"))
        elif key == "set":
            assigned.append(value)
        else:
            name = key_of_argument(word)
            refuse_nothing(name, value)
            if name in ("experiment", "method") and name in run_config:
                raise ConfigError(f"two {name}s, {run_config[name]} and {value}: name one.")
            run_config[name] = _run_value(name, value, directory or Path.cwd())
    if assigned:
        run_config["set"] = " ".join(assigned)
    return run_config


def key_of_argument(word: str) -> str:
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
        key = key_of_argument(word)
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
    """Make the paths of user data and weights absolute, like the run config's paths."""
    if key in (FILE_KEY, START_KEY) and text and not text.startswith("torchvision:"):
        return str(directory / from_home(text))
    if key in (SITES_KEY, TABLES_KEY) and text:
        parts = text.split(",")
        _refuse_commas(parts, directory)
        return ",".join(str(directory / from_home(part.strip())) for part in parts)
    return text


def _refuse_commas(parts: list[str], directory: Path) -> None:
    """Raise ConfigError if a folder exists whose name has a comma, which separates paths."""
    for start, many in itertools.product(range(len(parts)), (2, 3)):
        folder = directory / from_home(",".join(parts[start : start + many]).strip())
        if start + many <= len(parts) and folder_exists(folder):
            raise ConfigError(
                f"a comma in {SITES_KEY} ends a path, and {folder} has one in its name: rename the folder, or give a "
                "link to it without one."
            )


def folder_exists(place: Path) -> bool:
    """Return whether a folder exists; False for a name that no folder can have."""
    with suppress(OSError, ValueError):
        return place.is_dir()
    return False


def meant_by(name: str, method: str = "") -> str:
    """Return the key closest to an option's name without its dashes; empty if none is similar."""
    from common.config.schema import known_keys

    return nearest_key(name, [*TYPED_KEYS, *known_keys()], method or RunSettings().method)


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


# ---- paths ---------------------------------------------------------------------------------------


def looks_like_path(word: str) -> bool:
    """Return whether a word names a path: it has no ``=`` before its first slash, or a folder has that name."""
    return "=" not in word.partition("/")[0] or folder_exists(Path(word))


def local_path(word: str) -> Path:
    """Return the path that a word names, absolute; ConfigError if it is a setting."""
    if not looks_like_path(word):
        raise ConfigError(f"expected a file or a directory, got the setting {word!r}.")
    return Path.cwd() / from_home(word)


def above_0(name: str, value: float | None, *, below: float = float("inf")) -> None:
    """Refuse a number that is not above 0 and below ``below``, which ranges of the library include."""
    if value is not None and not 0 < value < below:
        bound = "" if below == float("inf") else f" and below {below:g}"
        raise ConfigError(f"{name}={value:g} must be a number above 0{bound}.")


# ---- class list ----------------------------------------------------------------------------------
# If the settings state no classes, a simulation takes the names of its image folders.


def resolved(
    run_config: Mapping[str, str | int | float | bool],
    policy: ImportPolicy | None = None,
    *,
    begins: bool = True,
) -> Config:
    """Resolve ``run_config``; where it names folders of images but not their classes, with the classes stated.

    If the run ``begins`` on this machine, a missing ``data.file`` is refused first.

    Only for simulations, whose processes all get the list. Real sites must agree on a list before they read data, so
    their run has to state it. ``policy`` decides on import paths first.
    """
    return load(run_config, policy=policy, class_list=partial(_class_list, begins=begins))


def _class_list(dataset: str, settings: SharedSections, data_dir: Path, *, begins: bool) -> str:
    """Return the classes of image folders, by their names, if the settings state none; empty for other data."""
    images, file = settings.images, settings.data.file
    if begins and file and Path(file).is_absolute() and not Path(file).exists():
        raise ConfigError(
            f"{FILE_KEY}={file} does not exist: every machine of the federation needs it at that path."
        )
    if images.classes or not is_user_data(dataset) or kind_of(dataset):
        return ""
    central = [data_dir / Path(images.folder).expanduser()] if images.folder else []
    folders = [*images.site_folders, *central]
    alone = len(folders) == 1
    names = {name for folder in folders for name in _classes_in(folder, alone=alone)}
    return ",".join(sorted(names))


def with_fitting_sites(config: Config) -> Config:
    """Return a simulation of user data with as many sites as the data allow, unless their number is stated.

    A private run keeps the default, since another number would reveal how many examples there are.
    """
    stated = "federation.sites" in config.origin or config.private or config.secret
    if stated or config.site_places or not is_user_data(config.dataset):
        return config
    from common.division import Division

    division, refused = Division(config), ""
    _ = division.validation  # an error of this kind does not depend on the number of sites
    for sites in range(config.federation.sites, 1, -1):
        try:
            division.partition(sites)
            fitting = config.with_sites(sites, "the data") if refused else config
        except (ConfigError, DataError) as error:
            refused = refused or str(error)
            continue
        if refused:
            message = "federation.sites=%d, as many as the data allow: %s"
            getLogger("flwr").warning(message, sites, refused.partition(";")[0])
        return fitting
    return config


def _classes_in(folder: Path, *, alone: bool) -> list[str]:
    """Return the names of a folder's classes; ConfigError if it has none, or, where it is ``alone``, only one."""
    from common.data.folders.folder import TEST, TRAIN
    from nectar.dataset.class_folders import class_folders

    layout = f"{TRAIN}/<class>/* and {TEST[0]}/<class>/*, or <class>/* alone"
    if not folder.is_dir():
        what = "is a file: unpack it, and name" if folder.exists() else "does not exist: name"
        raise ConfigError(
            f"{folder} {what} a folder that holds {layout} (a relative one is below data-dir)."
        )
    names = class_folders(folder)
    if not names:
        raise ConfigError(f"{folder} has no class folders: arrange the images as {layout}.")
    parts = [name for name in names if name.lower() in (TRAIN, *TEST)]
    if parts == names and all(class_folders(folder / name) for name in parts):
        named = " and ".join(parts)
        raise ConfigError(f"{folder} holds {named}, read only as {named.lower()}: rename them.")
    if comma := next((name for name in names if "," in name), ""):
        raise ConfigError(
            f"{folder} has a class {comma!r}, but commas separate class names: rename the folder."
        )
    deeper = folder / names[0]
    if len(names) == 1 and alone and deeper.is_dir() and class_folders(deeper):
        raise ConfigError(
            f"{folder} contains a single folder, which holds the classes: name {deeper} instead."
        )
    return names


# ---- durations -----------------------------------------------------------------------------------


def format_duration(seconds: float) -> str:
    """Return a duration for people: ``0.3 s``, ``42 s``, ``3 min 20 s``, ``12 h 36 min``, ``107 days``."""
    if seconds < 9.95:
        if seconds < 0.05:
            return "under 0.1 s"
        return f"{seconds:.1f} s"
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        minutes, rest = divmod(rounded, 60)
        return f"{minutes} min {rest} s" if rest and minutes < 10 else f"{round(rounded / 60)} min"
    hours, minutes = divmod(round(rounded / 60), 60)
    if hours >= 72:
        return f"{round(rounded / 86400)} days"
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"
