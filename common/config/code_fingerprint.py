"""The code that can decide one run's numbers, in 16 hex digits, so that a run is known again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from common.code.fingerprint import digits_of
from common.code.import_closure import Sources
from common.config.resolved import Config
from common.methods import resolve
from common.models.registry import MODELS
from common.settings.datasets import module_of

APPS = ("server_app.app", "client_app.app")
"""The modules of the two apps."""

#: what no number of a run hangs on, though the apps import it
_NOT_IN_NUMBERS = (
    # a resolved configuration states all that comes of them
    "common.config",
    # the parts that they name for a run are counted themselves
    "common.methods",
    "common.models.registry",
    # they say which code counts
    "common.code.fingerprint",
    "common.code.import_closure",
    # what is shown and told of a run, and how its record goes home
    "common.wire.display_contrast",
    "server_app.marked_lines",
    "server_app.pictures",
    "server_app.screen",
    "server_app.sending",
    "server_app.tracking",
    # what a person holds: no app imports it, a script that runs itself does
    "nectar",
)

#: what this process has read, which is what it has imported
_LOADED = Sources()


def code_fingerprint(config: Config, sources: Sources = _LOADED) -> str:
    """Return the fingerprint of the code that can decide a run's numbers: with equal configurations, equal runs.

    It is that of the two apps and of the run's own parts (its method's, its model, its data set) with all that they
    import of the app or of a user's own modules; not other methods' files, comments, docstrings, or installed packages.

    Parameters
    ----------
    sources : Sources
        Where the source is read; by default as this process first read it.
    """
    return _fingerprint(code_modules(config, sources), sources)


def modules_fingerprint(modules: Iterable[str], sources: Sources = _LOADED) -> str:
    """Return the fingerprint of modules of the app and all that they import of it."""
    return _fingerprint(sources.closure([*modules], apart=_decides_nothing), sources)


def _fingerprint(modules: Mapping[str, Path], sources: Sources) -> str:
    return digits_of(
        (name, sources.of(name, path).digest.encode()) for name, path in modules.items()
    )


def code_modules(config: Config, sources: Sources = _LOADED) -> dict[str, Path]:
    """Return the files that the fingerprint of a run's code is over, by module."""
    return sources.closure([*APPS, *parts_of(config)], apart=_decides_nothing)


def parts_of(config: Config) -> list[str]:
    """Return the modules that a run's configuration names."""
    methods = [resolve(name) for name in (config.method, *config.inner)]
    networks = (config.model.name, config.features.name)
    paths = [MODELS[name].path if name in MODELS else name for name in networks]
    parts = [path for m in methods for path in (m.strategy, m.client, m.settings)]
    paths += [config.method, *parts]
    modules = [path.partition(":")[0] for path in paths if ":" in path]
    # The sets of torchvision and of the hub have a colon too, and are no modules.
    return [*modules, *filter(None, [module_of(config.dataset)])]


def _decides_nothing(module: str) -> bool:
    return any(module == one or module.startswith(f"{one}.") for one in _NOT_IN_NUMBERS)
