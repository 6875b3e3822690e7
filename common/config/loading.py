"""From a run config to the resolved configuration: merge, validate, freeze."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.code.imports import is_import_path
from common.config.keys import (
    ACCEPT,
    COMMAND_LINE,
    CONFIG,
    PATH_KEYS,
    RESOLVED,
    RESUME_CODE,
    ROUND,
    SETTINGS_OF,
    STRATEGY,
    TYPED,
    YES,
    Stated,
    fail,
    show,
    where_phrase,
)
from common.config.layers import merge
from common.config.resolved import Config, stated_here
from common.config.schema import Sections, read_sections
from common.config.sources import path_of, sources_of
from common.config.text import Scalar, from_home
from common.config.user_parts import (
    ImportPolicy,
    check_arguments,
    check_strategy,
    chosen_method,
    require_allowed,
    stated_arguments,
)
from common.errors import ConfigError
from common.methods import Method
from common.settings.images import ImagesSettings
from common.settings.sections import PrivacySettings, SharedSections

_DEFAULT_PATHS = {
    "output-dir": ("NECTAR_RUNS", "~/nectar/runs"),
    "data-dir": ("NECTAR_DATA", "~/.cache/nectar/data"),
}
"""Where a path comes from when it is not given: the variable, else the place."""

ClassList = Callable[[str, SharedSections, Path], str]
"""Looks at what a simulation reads on this machine, by data set, settings and data-dir, and names the classes of
folders of images of which the run states none; a ConfigError if a place is not there."""


def load(
    run_config: Mapping[str, Any],
    *,
    policy: ImportPolicy | None = None,
    class_list: ClassList | None = None,
) -> Config:
    """Resolve a run config.

    Merges, the later over the earlier: the settings classes' defaults,
    ``conf/dataset/<dataset>.yaml``, what the method needs of other sections, the experiment (a cell of a table in
    ``conf/table``), the user's own file that ``config`` names, the run config's own keys, its ``set``.
    Settings of any method may be given anywhere; all are checked, the chosen method's are used.

    Parameters
    ----------
    run_config : mapping
        Flower's run config: experiment, method, dataset, rounds, seed, output-dir, data-dir,
        resume, set, config. A missing key and the empty text both mean unset. With ``resolved`` no file is read, and
        the experiment is but a name: it is what :meth:`Config.to_run_config` returned.
    policy : callable, optional
        A site's own: called with (key, import path) before anything named by import path is imported, and
        raises for what may not be. Where there is one, a Flower strategy is not imported at all, nor are its
        arguments checked: it is the server's.
    class_list : callable, optional
        Looks at what a simulation reads on this machine.
    """
    if policy is None and (stated := stated_here(run_config)) is not None:
        return stated
    given = {key: value for key, value in run_config.items() if value != ""}  # which is unset
    _check_internal_keys(given, policy)
    sources = sources_of(given, policy)
    leaves = merge(sources.layers)
    if policy is not None:
        require_allowed(leaves, policy)
    own = chosen_method(leaves, policy)
    read = read_sections(leaves, own)
    paths = _paths(given, sources.paths)
    origin = {key: leaf.where for key, leaf in paths.items() if leaf.where}
    origin |= {"experiment": COMMAND_LINE} if sources.experiment else {}
    origin |= {key: leaf.where for key, leaf in read.leaves.items()}
    images, resume = read.shared.images, str(paths["resume"].value)
    data_dir = paths["data-dir"].value
    if class_list and (names := class_list(read.run.dataset, read.shared, data_dir)):
        images = ImagesSettings.model_validate(images.model_dump() | {"classes": names})
        origin["images.classes"] = "the folders' names"
    shared = replace(
        read.shared,
        images=images,
        model=read.method.shaped(read.shared.model),
        privacy=_privacy(read, given, policy),
    )
    return Config(
        **vars(shared),
        **read.run.model_dump(),
        experiment=sources.experiment,
        output_dir=paths["output-dir"].value,
        data_dir=data_dir,
        resume=resume,
        settings=read.method,
        inner=read.inner,
        strategy=_strategy_arguments(read.run.method, leaves, own, policy),
        origin=origin,
        typed=str(given.get(TYPED, "")),
        resume_code=_resume_code(given, resume),
    )


def _privacy(
    read: Sections, given: Mapping[str, Any], policy: ImportPolicy | None
) -> PrivacySettings:
    """Return the settings of privacy, with the noise that an epsilon is planned by."""
    privacy, begins = read.shared.privacy, RESOLVED not in given
    typed = read.leaves.get("privacy.epsilon")
    if typed and not privacy.epsilon and typed.where == COMMAND_LINE and begins:
        raise ConfigError(
            "privacy.epsilon=0 takes infinite noise and does not turn privacy off: give one above 0, or leave it out."
        )
    # What `nectar` submits names the noise; of what `flwr run` does the sites plan the same as the server.
    if privacy.epsilon and (policy is None or begins):
        from common.config.privacy_plan import planned_privacy  # seconds of imports

        return planned_privacy(read, begins=begins)
    return privacy


def _check_internal_keys(given: Mapping[str, Any], policy: ImportPolicy | None) -> None:
    """Refuse keys that say what is to be done with a run config, where they do not belong."""
    if SETTINGS_OF in given:
        raise ConfigError(
            f"{SETTINGS_OF} only asks for a record's settings: leave it out of a run."
        )
    if given.get(ROUND):
        raise ConfigError(
            f"{ROUND}={given[ROUND]} is no setting: write rounds=N for more rounds; to begin from a run's best round, "
            "`nectar export RECORD --best --output DIR`, then model.start=DIR/model.safetensors."
        )
    if CONFIG in given and policy is not None:
        # An error about a file quotes it, and a site's files are none of the server's business.
        raise ConfigError(
            f"{CONFIG} is a path on the machine where it is typed, and cannot be sent to sites."
        )
    if RESOLVED in given and (given[RESOLVED] != YES or CONFIG in given):
        raise ConfigError(
            f"{RESOLVED} is what `nectar` submits a run with, as {RESOLVED}={YES}: leave it out."
        )


def _resume_code(given: Mapping[str, Any], resume: str) -> str:
    """Return ``accept`` where a record may be continued by other code than its own, else nothing."""
    value = given.get(RESUME_CODE, "")
    if value not in ("", ACCEPT):
        raise ConfigError(f"{RESUME_CODE} must be {ACCEPT}, or left out, not {show(value)}.")
    if value and not resume:
        raise ConfigError(f"{RESUME_CODE}={value} applies to a resumed run: name its record too.")
    return str(value)


def _strategy_arguments(
    method: str, leaves: Mapping[str, Stated], own: Method | None, policy: ImportPolicy | None
) -> dict[str, Scalar]:
    """Return the constructor arguments of a Flower strategy: checked where it is imported, which no site does."""
    given = stated_arguments(leaves)
    if own is None and is_import_path(method):
        if policy is not None:
            return {name: leaf.value for name, leaf in given.items()}
        return check_arguments(method, check_strategy(leaves["method"]), given)
    if given:
        fail(
            [
                f"{STRATEGY}.{name} {where_phrase(leaf.where)} needs a Flower strategy, such as "
                f"method=flwr.serverapp.strategy:FedAdam: {method} takes no {STRATEGY} arguments."
                for name, leaf in given.items()
            ]
        )
    return {}


def _paths(given: Mapping[str, Any], in_file: Mapping[str, Stated]) -> dict[str, Stated]:
    """Return the run's three paths, each with where it was given (empty for a default)."""
    found = {"resume": Stated("", "")}
    for key in PATH_KEYS:
        variable, place = _DEFAULT_PATHS.get(key, ("", ""))
        if key in given:
            found[key] = Stated(path_of(key, given[key], COMMAND_LINE), COMMAND_LINE)
        elif key in in_file:
            found[key] = in_file[key]
        elif value := os.environ.get(variable, ""):
            found[key] = Stated(
                path_of(variable, value, "the environment"), f"the variable {variable}"
            )
        elif place:
            found[key] = Stated(from_home(place), "")
    return found
