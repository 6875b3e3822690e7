"""The words and options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from common.config.text import from_home
from common.errors import ConfigError
from nectar.words import completions


def flag(name: str, help: str) -> Any:
    """Return an option without a value."""
    return typer.Option(name, help=help)


def option(metavar: str, help: str, *, name: str | None = None, **more: Any) -> Any:
    """Return an option with a value, called as its parameter or ``name``; its default is not shown."""
    names = () if name is None else (name,)
    return typer.Option(*names, metavar=metavar, help=help, show_default=False, **more)


def argument(metavar: str, help: str, **more: Any) -> Any:
    """Return a word that stands without an option."""
    return typer.Argument(metavar=metavar, help=help, show_default=False, **more)


Words = Annotated[
    list[str] | None,
    argument(
        "[EXPERIMENT | METHOD] [KEY=VALUE]...", "settings, as in Hydra", autocompletion=completions
    ),
]

ConfigFile = Annotated[
    str | None,
    option(
        "FILE",
        "a YAML file of settings: written as an experiment is (base: NAME departs from one), or what "
        "`nectar config` printed, or a record's config.yaml; words stand over it",
        name="--config",
    ),
]

_RECORD = "the directory that the run printed, the record's id, or latest"

Record = Annotated[str, argument("RECORD", _RECORD)]

Records = Annotated[list[str], argument("RECORD...", _RECORD)]

Connection = Annotated[
    str, argument("CONNECTION", "a name in Flower's config.toml, or HOST:PORT with --ca FILE")
]

CaFile = Annotated[
    str | None,
    option("FILE", "the authority's certificate, for a connection given as HOST:PORT", name="--ca"),
]

Insecure = Annotated[bool, flag("--insecure", "the SuperLink has no TLS, and that is meant")]

AllowImports = Annotated[
    str,
    option(
        "MODULES",
        "a method, model or data set of somebody's own is imported only from modules named here",
        name="--allow-imports",
    ),
]

Without = Annotated[
    str,
    option(
        "A,B",
        "leave these of the record there, such as samples,checkpoint/best.safetensors",
        name="--without",
    ),
]

Replace = Annotated[
    bool, flag("--replace", "let the files of a completed run's copy on this machine go")
]

RecordsHere = Annotated[
    str | None,
    option(
        "DIR",
        "the directory of records on this machine (default: as `nectar run` has its records)",
        name="--output",
    ),
]

Delta = Annotated[float, typer.Option(help="the delta at which an epsilon is meant")]


def is_place(word: str) -> bool:
    """Whether a word names a path: it has no ``=`` before its first slash, or a folder has that name."""
    return "=" not in word.partition("/")[0] or Path(word).is_dir()


def here(word: str) -> Path:
    """Return the path that a word names, absolute; ConfigError if it is a setting."""
    if not is_place(word):
        raise ConfigError(f"{word!r} is a setting: here goes a file or a directory.")
    return Path.cwd() / from_home(word)


def above_0(name: str, value: float | None, *, below: float = float("inf")) -> None:
    """Refuse a number that is not above 0 and below ``below``, which ranges of the library include."""
    if value is not None and not 0 < value < below:
        bound = "" if below == float("inf") else f" and below {below:g}"
        raise ConfigError(f"{name}={value:g} must be a number above 0{bound}.")
