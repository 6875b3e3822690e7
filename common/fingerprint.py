"""What runs, in 16 hex digits: the whole app, so that a server can refuse devices that run another one, and the code
that can decide one run's numbers, so that a run is known again.

Flower's simulation may import a ClientApp from another place than the ServerApp, and a site may have pinned an
older release; both would give quietly different numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from common.datasets import module_of
from common.import_closure import PACKAGES, ROOT, Sources
from common.methods import resolve
from common.models.registry import MODELS

if TYPE_CHECKING:
    from common.config import Config

APPS = ("server_app.app", "client_app.app")
"""The modules of the two apps."""

_SUFFIXES = {".py", ".yaml", ".json"}

#: what no number of a run hangs on, though the apps import it
_NOT_IN_NUMBERS = (
    # a resolved configuration states all that comes of them
    "common.config",
    # the parts that they name for a run are counted themselves
    "common.methods",
    "common.models.registry",
    # they say which code counts
    "common.fingerprint",
    "common.import_closure",
    # what is shown of a run, and how its record goes home
    "common.display_contrast",
    "server_app.marked_lines",
    "server_app.pictures",
    "server_app.redaction",
    "server_app.screen",
    "server_app.sending",
)

#: what this process has read, which is what it has imported
_LOADED = Sources()


def source_files(root: Path) -> list[Path]:
    """Return every file of the app below ``root`` in a fixed order: source, and the files of settings."""
    folders = sorted([*PACKAGES, "conf"])
    found = (path for folder in folders for path in sorted((root / folder).rglob("*")))
    return [path for path in found if path.suffix in _SUFFIXES and path.is_file()]


def fingerprint_of(root: Path, files: Iterable[Path]) -> str:
    """Return 16 hex digits over the names and contents of ``files``, named from ``root``."""
    return _digits((path.relative_to(root).as_posix(), path.read_bytes()) for path in files)


@cache
def source_fingerprint() -> str:
    """Return the fingerprint of the app this process was loaded from, read once."""
    return fingerprint_of(ROOT, source_files(ROOT))


def code_fingerprint(config: Config, sources: Sources = _LOADED) -> str:
    """Return the fingerprint of the code that can decide a run's numbers: with equal configurations, equal runs.

    It is that of the two apps and of the run's own parts (its method's, its model, its data set) with all that they
    import of the app or of a user's own modules; not other methods' files, comments, docstrings, or installed packages.

    Parameters
    ----------
    config : Config
        The run's.
    sources : Sources
        Where the source is read; by default as this process first read it.
    """
    return _fingerprint(code_modules(config, sources), sources)


def modules_fingerprint(modules: Iterable[str], sources: Sources = _LOADED) -> str:
    """Return the fingerprint of modules of the app and all that they import of it."""
    return _fingerprint(sources.closure([*modules], apart=_decides_nothing), sources)


def _fingerprint(modules: Mapping[str, Path], sources: Sources) -> str:
    return _digits((name, sources.of(name, path).digest.encode()) for name, path in modules.items())


def code_modules(config: Config, sources: Sources = _LOADED) -> dict[str, Path]:
    """Return the files that the fingerprint of a run's code is over, by module."""
    return sources.closure([*APPS, *_parts(config)], apart=_decides_nothing)


def _parts(config: Config) -> list[str]:
    """Return the modules that a run's configuration names."""
    methods = [resolve(name) for name in (config.method, *config.inner)]
    model = MODELS[config.model.name].path if config.model.name in MODELS else config.model.name
    parts = [path for m in methods for path in (m.strategy, m.client, m.settings)]
    paths = [config.method, *parts, model]
    modules = [path.partition(":")[0] for path in paths if ":" in path]
    # The sets of torchvision and of the hub have a colon too, and are no modules.
    return [*modules, *filter(None, [module_of(config.dataset)])]


def _decides_nothing(module: str) -> bool:
    return any(module == one or module.startswith(f"{one}.") for one in _NOT_IN_NUMBERS)


def _digits(parts: Iterable[tuple[str, bytes]]) -> str:
    digest = hashlib.sha256()
    for label, content in parts:
        name = label.encode()
        digest.update(b"%d:%s%d:" % (len(name), name, len(content)) + content)
    return digest.hexdigest()[:16]
