"""The code that can decide one run's numbers, in 16 hex digits, so that a run is known again."""

from __future__ import annotations

import hashlib
import importlib.util
import site
import sys
import sysconfig
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from common.code.fingerprint import PACKAGES, ROOT, digits_of
from common.code.imports import is_import_path
from common.config.resolved import Config
from common.methods import FOREIGN_CLIENT, METHODS, Method, resolve
from common.models.registry import MODELS
from common.settings.sections import module_of

_ROOMS = ("strategies", "client_app", "common.settings", "common.specs")

MADE: dict[str, Path] = {}
"""The file with what the running program defines, by its module: Python finds none of that name."""


def code_fingerprint(config: Config, *, root: Path = ROOT, now: bool = False) -> str:
    """Return the fingerprint of the code that can decide a run's numbers: with equal configurations, equal runs.

    It covers the bytes of the app's files, comments included, except those of methods that the run does not use or
    build on, and the release's number; and the user's own packages that the configuration names. Installed
    packages are not covered. With ``now`` each file is read again, not as this process first read it.
    """
    digest = _digest.__wrapped__ if now else _digest
    return digits_of((name, digest(path)) for name, path in code_files(config, root).items())


@cache
def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


def code_files(config: Config, root: Path = ROOT) -> dict[str, Path]:
    """Return the files that the fingerprint of a run's code is over, by name."""
    used = built_on([config.method, *config.inner])
    excluded = {
        file for name, method in METHODS.items() if name not in used for file in files_of(method)
    }
    excluded.add("common/code/release.py")  # a release that changed nothing else resumes a run
    ours = (path for folder in sorted(PACKAGES) for path in sorted((root / folder).rglob("*.py")))
    named = {path.relative_to(root).as_posix(): path for path in ours}
    found = {name: path for name, path in named.items() if name not in excluded}
    for top in sorted({module.partition(".")[0] for module in user_modules_of(config)}):
        home = _home(top)
        files = [MADE[top]] if top in MADE else _sources(home, top) if home else []
        found |= {f"{top}: {path.relative_to(home or path.parent)}": path for path in files}
    return found


def built_on(names: Iterable[str]) -> frozenset[str]:
    """Return the methods whose files the runs of ``names`` execute: theirs, and those that they are built on.

    What a user's own code builds on is unknown: all of them.
    """
    found = {FOREIGN_CLIENT}
    queue = [*names]
    while queue:
        name = queue.pop()
        if is_import_path(name) and not name.startswith("flwr."):
            return frozenset(METHODS)
        if name in METHODS and name not in found:
            found.add(name)
            queue += METHODS[name].on
    return frozenset(found)


def files_of(method: Method) -> list[str]:
    """Return the files of one of Nectar's methods: those of its name, and its parts."""
    modules = [*(f"{room}.{method.name}" for room in _ROOMS), *method.parts]
    return [f"{module.replace('.', '/')}.py" for module in modules]


def user_modules_of(config: Config) -> list[str]:
    """Return the modules that a run's configuration names."""
    methods = [resolve(name) for name in (config.method, *config.inner)]
    networks = (config.model.name, config.features.name)
    paths = [MODELS[name].path if name in MODELS else name for name in networks]
    parts = [path for m in methods for path in (m.strategy, m.client, m.settings)]
    paths += [config.method, *parts, *config.settings.own_code()]
    modules = [path.partition(":")[0] for path in paths if ":" in path]
    # The sets of torchvision and of the hub have a colon too, and are no modules.
    return [*modules, *filter(None, [module_of(config.dataset)])]


def _sources(home: Path, top: str) -> list[Path]:
    """Return a user's own files: a package with all below it, or a module with those in its folder."""
    package = home / top
    return sorted(package.rglob("*.py") if package.is_dir() else home.glob("*.py"))


@cache
def _home(top: str) -> Path | None:
    """Return the folder that holds a user's own top-level module or package; None for ours and installed ones."""
    if top in sys.stdlib_module_names or top in PACKAGES:
        return None
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    packages = list(spec.submodule_search_locations or ())
    place = packages[0] if packages else spec.origin
    path = Path(place or "").resolve()
    if not path.exists() or any(path.is_relative_to(installed) for installed in _installed()):
        return None
    return path.parent


@cache
def _installed() -> tuple[Path, ...]:
    names = ("purelib", "platlib", "stdlib")
    places = [sysconfig.get_path(name) for name in names]
    places += [*site.getsitepackages(), site.getusersitepackages()]
    # those of another environment, which a .pth file or PYTHONPATH adds
    places += [one for one in sys.path if Path(one).name in ("site-packages", "dist-packages")]
    return tuple(Path(place).resolve() for place in places)
