"""A user's own parts that a run of theirs has imported on this machine: a record that names one may import it again.

What is kept is the whole import path and where its module lay: another name of the module, or a module of that name
from elsewhere, such as beside a record that came by mail, is not trusted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from importlib.machinery import PathFinder
from pathlib import Path

from common.code.imports import FOLDER, HERE
from common.config.resolved import Config
from common.config.text import from_home
from common.methods import resolve
from common.settings.sections import module_of
from common.storage.files import write_json
from nectar.own_packages import PACKAGES

_MOST = 1000
"""How many paths are kept, the newest."""


def note_parts(config: Config) -> None:
    """Keep what a run names of the user's own; a home that cannot be written to keeps nothing."""
    named = [
        config.method,
        config.model.name,
        *([config.dataset] if module_of(config.dataset) else []),
    ]
    for one in (config.method, *config.inner):
        method = resolve(one)
        named += [method.strategy, method.client, method.settings, method.facts]
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
    """Whether a run of this user's imported ``path`` here, from where Python would import it now."""
    place = _known().get(path)
    return place is not None and place == _place(path)


def _place(path: str) -> str:
    """Return where a module of the user's own would be imported from, found without importing; empty for any other."""
    module, colon, _ = path.partition(":")
    top = module.partition(".")[0]
    if not colon or top in (*PACKAGES, "nectar", "flwr", HERE):
        return ""
    try:
        spec = PathFinder.find_spec(top) or PathFinder.find_spec(top, _folders())
    except (ImportError, ValueError):
        return ""
    if spec is None:
        return ""
    place = spec.origin or next(iter(spec.submodule_search_locations or ()), "")
    return str(Path(place).resolve()) if place else ""


def _folders() -> list[str]:
    return [folder for folder in (os.environ.get(FOLDER, ""),) if folder]


def _known() -> Mapping[str, str]:
    """Return what is kept, by import path; nothing of a file that somebody else could have written."""
    try:
        status = _file().stat()
        if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
            return {}
        found = json.loads(_file().read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    pairs: Iterable[tuple[object, object]] = found.items() if isinstance(found, dict) else ()
    return {k: v for k, v in pairs if isinstance(k, str) and isinstance(v, str)}


def _file() -> Path:
    home = from_home(os.environ.get("XDG_STATE_HOME") or "~/.local/state").absolute()
    return home / "nectar" / "own-parts.json"
