"""The imports that a record may cause: Flower's, those the command line allows, those of the user's own runs.

A user's own parts that a run of theirs has imported on this machine are kept, by import path and where the module lay:
another name of the module, or a module of that name from elsewhere, such as next to a record that came by mail, is not
trusted.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from importlib.machinery import PathFinder
from pathlib import Path

from common.code.fingerprint import PACKAGES
from common.code.imports import HERE
from common.config.resolved import Config
from common.config.text import from_home
from common.config.user_parts import PART, ImportPolicy
from common.errors import ConfigError
from common.methods import resolve
from common.settings.sections import module_of
from common.storage.files import write_json

OPTION = "--allow-imports"
"""The option with modules that a record's method, model or data set may be in."""


class NotNamed(ConfigError):
    """A record names a module that the command line does not."""


#: of Nectar's own, what a record may name by import path, by the key that names it
_OWN = {"model.name": ("common.models",), PART: (*PACKAGES, "nectar")}


def import_policy_of(named: str, option: str = f"{OPTION} ") -> ImportPolicy:
    """Return what a record is read with, where ``named`` are the modules that the command line allows.

    Parameters
    ----------
    named : str
        Modules and packages, with spaces or commas between them; a package includes its submodules.
    option : str
        The option that the error names before the module.
    """
    allowed = tuple(word for word in re.split(r"[\s,]+", named) if word)

    def require(key: str, path: str) -> None:
        module = path.partition(":")[0]
        known = any(_within(module, one) for one in ("flwr", *_OWN.get(key, ()), *allowed))
        if not known and not is_trusted(path):
            raise NotNamed(
                f"the record names {path!r:.100} as {key}, and a record can come from anywhere, so nothing of it was "
                f"imported: if you trust that module, add {option}{module:.98}"
            )

    return require


def _within(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


_MOST = 1000
"""How many paths are kept, the newest."""


def note_parts(config: Config) -> None:
    """Remember the user-defined import paths of a run, if the home folder can be written to."""
    named = [
        config.method,
        config.model.name,
        *([config.dataset] if module_of(config.dataset) else []),
    ]
    for one in (config.method, *config.inner):
        method = resolve(one)
        named += [method.strategy, method.client, method.settings]
    own = {path: place for path in named if (place := _place(path))}
    if not own:
        return
    known = _known()
    if own.items() <= known.items():
        return
    kept = {path: place for path, place in known.items() if path not in own} | own
    try:
        _file().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_json(_file(), dict(list(kept.items())[-_MOST:]))
        _file().chmod(0o600)
    except OSError:
        return


def is_trusted(path: str) -> bool:
    """Return whether a run of this user imported ``path`` from the same file that Python would import now."""
    place = _known().get(path)
    return place is not None and place == _place(path)


def _place(path: str) -> str:
    """Return the file of a user's module, found without importing it; empty for any other module."""
    module, colon, _ = path.partition(":")
    top = module.partition(".")[0]
    if not colon or top in (*PACKAGES, "nectar", "flwr", HERE):
        return ""
    try:
        spec = PathFinder.find_spec(top)
    except (ImportError, ValueError):
        return ""
    if spec is None:
        return ""
    place = spec.origin or next(iter(spec.submodule_search_locations or ()), "")
    return str(Path(place).resolve()) if place else ""


def _known() -> Mapping[str, str]:
    """Return the files by import path that were remembered; empty if another user could have written them."""
    try:
        status = _file().stat()
        if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
            return {}
        found = json.loads(_file().read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {k: v for k, v in found.items() if isinstance(k, str) and isinstance(v, str)}


def _file() -> Path:
    home = from_home(os.environ.get("XDG_STATE_HOME") or "~/.local/state").absolute()
    return home / "nectar" / "own-parts.json"
