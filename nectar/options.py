"""The words and options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from common.config.text import from_home
from common.errors import ConfigError
from nectar.words import completions

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[EXPERIMENT | METHOD] [KEY=VALUE]...",
        help="settings, as in Hydra",
        autocompletion=completions,
        show_default=False,
    ),
]

ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="a YAML file of settings: written as an experiment is (base: NAME departs from one), or what "
        "`nectar config` printed, or a record's config.yaml; words stand over it",
    ),
]

_RECORD = "the directory that the run printed, the record's id, or latest"

Record = Annotated[str, typer.Argument(metavar="RECORD", help=_RECORD)]

Records = Annotated[list[str], typer.Argument(metavar="RECORD...", help=_RECORD)]

Connection = Annotated[
    str,
    typer.Argument(
        metavar="CONNECTION", help="a name in Flower's config.toml, or HOST:PORT with --ca FILE"
    ),
]

CaFile = Annotated[
    str | None,
    typer.Option(
        "--ca",
        metavar="FILE",
        help="the authority's certificate, for a connection given as HOST:PORT",
    ),
]

Insecure = Annotated[
    bool, typer.Option("--insecure", help="the SuperLink has no TLS, and that is meant")
]

AllowImports = Annotated[
    str,
    typer.Option(
        "--allow-imports",
        metavar="MODULES",
        help="a method, model or data set of somebody's own is imported only from modules named here",
        show_default=False,
    ),
]

Without = Annotated[
    str,
    typer.Option(
        "--without",
        metavar="A,B",
        help="leave these of the record there, such as samples,checkpoint/best.safetensors",
        show_default=False,
    ),
]

Replace = Annotated[
    bool,
    typer.Option("--replace", help="let the files of a completed run's copy on this machine go"),
]

RecordsHere = Annotated[
    str | None,
    typer.Option(
        "--output",
        metavar="DIR",
        help="the directory of records on this machine (default: as `nectar run` has its records)",
    ),
]

Delta = Annotated[float, typer.Option(help="the delta at which an epsilon is meant")]


def here(word: str) -> Path:
    """Return the path that a word names, absolute.

    Raises
    ------
    ConfigError
        If it is a setting.
    """
    if "=" in word.partition("/")[0]:
        raise ConfigError(f"{word!r} is a setting: here goes a file or a directory.")
    return Path.cwd() / from_home(word)


def above_0(name: str, value: float | None, *, below: float = float("inf")) -> None:
    """Refuse a number that is not above 0 and below ``below``, which ranges of the library include."""
    if value is not None and not 0 < value < below:
        bound = "" if below == float("inf") else f" and below {below:g}"
        raise ConfigError(f"{name}={value:g} must be a number above 0{bound}.")
