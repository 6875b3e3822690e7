"""Where the Flower app lies that this installation runs, simulates and submits.

In a clone that is the folder with pyproject.toml. An installation carries that file inside the package, and lays the
app out in the user's cache: its bundle has the checksum of the clone's, which sites pin.
"""

from __future__ import annotations

import hashlib
import importlib
import shutil
import tempfile
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.code.fingerprint import fingerprint_of
from common.storage.files import cache_folder
from nectar.engines.flower.client import LaunchError

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp

#: the folder that holds the packages
SOURCE = Path(__file__).resolve().parents[3]

#: the wheel's copy of pyproject.toml; a clone has none
_CARRIED = Path(__file__).with_name("app.toml")

_PROJECT = "pyproject.toml"


def project_file() -> Path:
    """Return the app's pyproject.toml, whatever it is called here."""
    return _CARRIED if _CARRIED.is_file() else SOURCE / _PROJECT


def project() -> dict[str, Any]:
    """Return what pyproject.toml says; LaunchError if it is not there, unreadable or describes no Flower app."""
    return _read(project_file())


def client_app() -> ClientApp:
    """Return the ClientApp as Flower finds it: by its import path in pyproject.toml."""
    path = project()["tool"]["flwr"]["app"]["components"]["clientapp"]
    module, _, name = path.partition(":")
    app: ClientApp = getattr(importlib.import_module(module), name)
    return app


def app_folder() -> Path:
    """Return the folder that ``flwr run`` and ``flwr build`` take; LaunchError if there is none to lay out."""
    if not _CARRIED.is_file():
        require_app(SOURCE)
        return SOURCE
    files = _bundled(SOURCE, project())
    # Every release of Nectar has a folder of its own: another one may be running from its folder now.
    name = f"nectar-{_fingerprint(SOURCE, files, _CARRIED)}"
    cache = cache_folder()
    if cache is None:
        raise LaunchError(
            "the Flower app is laid out in a cache, and this user has no home: set XDG_CACHE_HOME"
        )
    folder = cache / "app" / name
    if not _is_whole(folder, name):
        try:
            _lay_out(files, folder)
        except OSError as error:
            raise LaunchError(
                f"the Flower app cannot be laid out in {folder} ({error.strerror}): set XDG_CACHE_HOME to a folder "
                "that can be written"
            ) from None
    return folder


def copy_bundled(app: Path, folder: Path) -> None:
    """Copy the files of the app in ``app`` that its bundle takes, and what says which, to ``folder``.

    Flower searches all that is beside an app for them, in a clone for seconds; the bundle of the copy is the same.

    Raises
    ------
    LaunchError
        There is no app.
    """
    described = _read(app / _PROJECT)
    rules = [path for path in (app / _PROJECT, app / ".gitignore") if path.is_file()]
    _copy([*_bundled(app, described), *rules], app, folder)


def require_app(folder: Path) -> None:
    """Check that a Flower app is in ``folder``; LaunchError without its pyproject.toml and components."""
    _read(folder / _PROJECT)


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise LaunchError(
            f"There is no {file.name} in {file.parent}, which says what the Flower app is: install Nectar again, from "
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


def _bundled(root: Path, described: dict[str, Any]) -> list[Path]:
    """Return the files below ``root`` that the bundle takes, in a fixed order."""
    patterns = described["tool"]["flwr"]["app"]["fab-include"]
    return sorted({path for pattern in patterns for path in root.glob(pattern)})


def _fingerprint(root: Path, files: list[Path], described: Path) -> str:
    text = fingerprint_of(root, files).encode() + described.read_bytes()
    return hashlib.sha256(text).hexdigest()[:16]


def _is_whole(folder: Path, name: str) -> bool:
    """Return whether a folder laid out earlier still holds what its name says, and nothing more."""
    described = folder / _PROJECT
    with suppress(OSError, LaunchError):
        return (
            f"nectar-{_fingerprint(folder, _bundled(folder, _read(described)), described)}" == name
        )
    return False


def _lay_out(files: list[Path], folder: Path) -> None:
    """Copy the app to ``folder``, which is whole or not there, also when two processes do so at once."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".nectar-", dir=folder.parent) as place:
        made = Path(place) / "made"
        _copy(files, SOURCE, made)
        shutil.copyfile(_CARRIED, made / _PROJECT)
        with suppress(FileNotFoundError):  # what is damaged gives way
            folder.rename(Path(place) / "damaged")
        try:
            made.rename(folder)
        except OSError:
            if not _is_whole(folder, folder.name):  # else another process was first
                raise


def _copy(files: list[Path], root: Path, folder: Path) -> None:
    """Copy files that are below ``root`` to the same places below ``folder``."""
    for file in files:
        to = folder / file.relative_to(root)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, to)
