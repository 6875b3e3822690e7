"""The files of the Flower app that this installation runs, simulates and submits.

In a clone that is the folder with pyproject.toml. An installation carries that file inside the package: its bundle has
the checksum of the clone's, which sites pin.
"""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Mapping
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.code.fingerprint import digits_of
from common.storage.files import cache_folder, write_atomically
from nectar.engines.flower.errors import LaunchError

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp

#: the folder that holds the packages
SOURCE = Path(__file__).resolve().parents[3]

#: the wheel's copy of pyproject.toml; a clone has none
_CARRIED = Path(__file__).with_name("app.toml")

_PROJECT = "pyproject.toml"


def project_file() -> Path:
    """Return the path of the app's pyproject.toml, or of the wheel's copy of it."""
    return _CARRIED if _CARRIED.is_file() else SOURCE / _PROJECT


def project() -> dict[str, Any]:
    """Return the content of pyproject.toml; LaunchError if it is missing, unreadable or describes no Flower app."""
    return _read(project_file())


def client_app() -> ClientApp:
    """Return the ClientApp as Flower finds it: by its import path in pyproject.toml."""
    path = project()["tool"]["flwr"]["app"]["components"]["clientapp"]
    module, _, name = path.partition(":")
    app: ClientApp = getattr(importlib.import_module(module), name)
    return app


def app_files() -> dict[str, bytes]:
    """Return the app's files by their paths: those of its bundle, and the files that list them."""
    patterns = project()["tool"]["flwr"]["app"]["fab-include"]
    paths = sorted({path for pattern in patterns for path in SOURCE.glob(pattern)})
    found = {path.relative_to(SOURCE).as_posix(): path.read_bytes() for path in paths}
    if not _CARRIED.is_file() and (rules := SOURCE / ".gitignore").is_file():
        found[rules.name] = rules.read_bytes()
    return found | {_PROJECT: project_file().read_bytes()}


def app_folder() -> Path:
    """Return the app's folder for ``flwr run``, after copying the app there if need be; LaunchError if that fails."""
    if not _CARRIED.is_file():
        require_app(SOURCE)
        return SOURCE
    files = app_files()
    cache = cache_folder()
    if cache is None:
        raise LaunchError(
            "the Flower app is copied to a cache folder, but this user has no home: set XDG_CACHE_HOME"
        )
    # One folder per release of Nectar: another process may be reading another release's.
    folder = cache / "app" / f"nectar-{digits_of(files.items())}"
    try:
        _lay_out(files, folder)
    except OSError as error:
        raise LaunchError(
            f"the Flower app cannot be copied to {folder} ({error.strerror}): set XDG_CACHE_HOME to a folder "
            "that can be written"
        ) from None
    return folder


def require_app(folder: Path) -> None:
    """Check that a Flower app is in ``folder``; LaunchError without its pyproject.toml and components."""
    _read(folder / _PROJECT)


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise LaunchError(
            f"There is no {file.name} in {file.parent}, which describes the Flower app: install Nectar again, from "
            "a wheel or from its unchanged source folder."
        )
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
        content["tool"]["flwr"]["app"]["components"]["clientapp"]
    except (KeyError, TypeError, tomllib.TOMLDecodeError) as error:
        raise LaunchError(
            f"{file} describes no Flower app ([tool.flwr.app.components] cannot be read: {error}); run from an "
            "unchanged source folder."
        ) from error
    return content


def _lay_out(files: Mapping[str, bytes], folder: Path) -> None:
    """Make ``folder`` contain exactly these files."""
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        if path.relative_to(folder).as_posix() not in files:
            path.unlink()
    for name, content in files.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, methodcaller("write_bytes", content))
