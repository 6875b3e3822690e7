"""From a run config to the resolved configuration: merge, validate, freeze."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from common.code.imports import is_import_path
from common.config.consistency import SITES_KEY
from common.config.keys import (
    BEST,
    CONFIG,
    FETCH,
    PATH_KEYS,
    RESOLVED,
    ROUND,
    STRATEGY,
    TYPED,
    YES,
    Leaf,
)
from common.config.layers import (
    Layer,
    dataset_layer,
    merge,
    read_run_config,
    run_config_layers,
)
from common.config.own_data import chosen_by_file, dataset_of_ones_own
from common.config.own_file import OwnFile, read_own_file
from common.config.own_parts import Judge, chosen_method, judge_all, model_problems
from common.config.problems import COMMAND_LINE, fail, show, unknown, where_phrase
from common.config.resolved import Config
from common.config.schema import build, section_classes, taken_over, unknown_problems
from common.config.strategy import check_arguments, check_strategy, stated_arguments
from common.config.tables import experiment_layers
from common.config.text import Scalar, from_home
from common.errors import ConfigError
from common.methods import FOREIGN_CLIENT, METHODS, Method, section, settings_of
from common.settings.base import Settings
from common.settings.image_training import ImageTrainingSettings
from common.settings.sections import SECTIONS, RunSettings

_DEFAULT_PATHS = {
    "output-dir": ("NECTAR_RUNS", "~/nectar/runs"),
    "data-dir": ("NECTAR_DATA", "~/.cache/nectar/data"),
}
"""Where a path comes from when it is not given: the variable, else the place."""


def load(run_config: Mapping[str, Any], *, judge: Judge | None = None) -> Config:
    """Resolve a run config.

    Merges, the later over the earlier: the settings classes' defaults,
    ``conf/dataset/<dataset>.yaml``, what the method needs of other sections, the experiment (a cell of a table in
    ``conf/table``), the user's own file that ``config`` names, the run config's own keys, its ``set``.
    The settings of every method may stand anywhere; all are checked, the chosen method's are used.

    Parameters
    ----------
    run_config : mapping
        Flower's run config: experiment, method, dataset, rounds, seed, output-dir, data-dir,
        resume, set, config. A missing key and the empty text both mean unset. With ``resolved`` no file is read, and
        the experiment is but a name: it is what :meth:`Config.to_run_config` returned.
    judge : callable, optional
        A site's own: told (key, import path) of each thing that is named by import path before it is imported, and
        raises for what may not be. Where there is one, a Flower strategy is not imported at all, nor are its
        arguments checked: it is the server's.

    Raises
    ------
    ConfigError
        A key that does not exist, a value of the wrong type or out of range, an unknown method,
        data set or experiment, a relative path: in a sentence each, with the nearest valid choice.
    """
    given = read_run_config(run_config)
    if FETCH in given:
        raise ConfigError(
            f"{FETCH} trains nothing: `nectar fetch CONNECTION RECORD` brings a record home."
        )
    if CONFIG in given and judge is not None:
        # What is wrong with a file is told by quoting it, and a site's files are none of the server's business.
        raise ConfigError(f"{CONFIG} names a file where it is typed, and is sent to no site.")
    experiment = given.get("experiment", "")
    if not isinstance(experiment, str):
        raise ConfigError(f"experiment must be a name, not {show(experiment)}.")
    layers = [*run_config_layers(given)]
    label, file = experiment, OwnFile()
    if not _is_resolved(given):
        file = read_own_file(given[CONFIG], experiment) if CONFIG in given else file
        named = experiment_layers(experiment) if experiment else []
        layers = [*named, *file.layers, *layers]
        label = experiment or file.experiment
        if judge is not None:
            judge_all(merge(layers), judge)
        layers = chosen_by_file(layers)
        layers[:0] = [_dataset_layer(layers), *_methods_layer(layers, judge)]
    leaves = merge(layers)
    _count_sites(leaves)
    if judge is not None:
        judge_all(leaves, judge)
    config = _resolve(label, leaves, _paths(given, file.paths), judge)
    return replace(config, typed=str(given.get(TYPED, "")), round=_round(given, config.resume))


def _round(given: Mapping[str, Any], resume: str) -> str:
    """Return after which round a run begins again: its number, ``best``, or nothing for the newest."""
    told = str(given.get(ROUND, ""))
    if told and not resume:
        raise ConfigError(
            f"{ROUND}={told} says where resume= begins again: name the record too, or write rounds."
        )
    if told not in ("", BEST) and not (told.isascii() and told.isdecimal()):
        raise ConfigError(f"{ROUND} must be the number of a round or {BEST}, not {show(told)}.")
    return told


def _is_resolved(given: Mapping[str, Any]) -> bool:
    value = given.get(RESOLVED, "")
    if value not in ("", YES) or (value and CONFIG in given):
        raise ConfigError(
            f"{RESOLVED} is what `nectar` submits a run with, as {RESOLVED}={YES}: leave it out."
        )
    return bool(value)


def _dataset_layer(layers: list[Layer]) -> Layer:
    """Read the file of the data set that the highest layer chooses."""
    leaf = merge(layers).get("dataset", Leaf(RunSettings().dataset, "default"))
    if not isinstance(leaf.value, str):
        raise ConfigError(
            f"dataset {where_phrase(leaf.where)} must be a name, not {show(leaf.value)}."
        )
    layer = dataset_of_ones_own(leaf.value, leaf.where)
    layer = layer or dataset_layer(leaf.value, leaf.where)
    if "dataset" in layer.values:
        raise ConfigError(
            f"dataset in {layer.where} must not be stated: the file's name is the name."
        )
    return layer


def _methods_layer(layers: list[Layer], judge: Judge | None) -> list[Layer]:
    """Return what the method that the highest layer chooses needs of other sections, where it names any."""
    leaves = merge(layers)
    name = leaves["method"].value if "method" in leaves else RunSettings().method
    own = chosen_method(leaves, judge)
    known = METHODS.get(str(name)) if own is None else own
    needed = settings_of(known).needs() if known is not None else {}
    return [Layer(f"method={name}", needed)] if needed else []


def _count_sites(leaves: dict[str, Leaf]) -> None:
    """Let the folders of simulated sites say how many there are, where nothing else does."""
    sites = leaves.get(SITES_KEY)
    if sites is not None and sites.value and isinstance(sites.value, str | list):
        named = sites.value.split(",") if isinstance(sites.value, str) else sites.value
        leaves.setdefault("federation.sites", Leaf(len(named), SITES_KEY))


def _resolve(
    experiment: str,
    leaves: dict[str, Leaf],
    paths: dict[str, tuple[Path | str, str]],
    judge: Judge | None,
) -> Config:
    """Check every value and build the configuration; ``paths`` carry where each was given."""
    own = chosen_method(leaves, judge)
    problems = [*unknown_problems(leaves, own), *model_problems(leaves)]
    given, taken = leaves, taken_over(leaves, own)
    leaves = {**taken, **leaves}
    sections: dict[str, Settings] = {}
    repeated: list[str] = []
    classes = {"": cast("type[Settings]", RunSettings), **section_classes(own)}
    in_use = _sections_in_use(given, leaves, classes, own)
    for name, cls in classes.items():
        built = build(name, cls, leaves)
        if not isinstance(built, Settings) and name not in in_use:
            built = build(name, cls, given)  # what it only took over is nothing to it
        if isinstance(built, Settings):
            sections[name] = built
        else:
            repeated += [said for said in built if said.partition("=")[0] in taken]
            problems += [said for said in built if said.partition("=")[0] not in taken]
    told = problems or repeated  # a value that methods take over is wrong once, where it was given
    if told:
        fail(told)
    run = cast(RunSettings, sections[""])
    foreign = is_import_path(run.method) and own is None
    if foreign and judge is not None:
        strategy = {name: leaf.value for name, leaf in stated_arguments(leaves).items()}
    else:
        strategy = _method_arguments(run.method, leaves, foreign)
    chosen = sections[section(run.method)]
    inner = {name: sections[name] for name in _used(section(run.method), sections)}
    if not any(settings.trains_on_images for settings in (chosen, *inner.values())):
        # What a data set's file says of it is nothing to a method that does not train so.
        sections["image_training"] = ImageTrainingSettings()
    places = {key: where for key, (_, where) in paths.items() if where}
    places |= {"experiment": COMMAND_LINE} if experiment else {}
    return Config(
        experiment=experiment,
        **run.model_dump(),
        output_dir=Path(paths["output-dir"][0]),
        data_dir=Path(paths["data-dir"][0]),
        resume=str(paths["resume"][0]),
        **{name: cast(Any, sections[name]) for name in SECTIONS},
        settings=chosen,
        inner=inner,
        strategy=strategy,
        origin=places | {key: leaf.where for key, leaf in leaves.items()},
    )


def _sections_in_use(
    given: Mapping[str, Leaf],
    leaves: Mapping[str, Leaf],
    classes: Mapping[str, type[Settings]],
    own: Method | None,
) -> set[str]:
    """Return the run-wide sections, the chosen method's and those of the methods inside it; an unknown one has none."""
    method = given["method"].value if "method" in given else RunSettings().method
    served = FOREIGN_CLIENT if is_import_path(str(method)) else str(method)
    chosen = own.name if own else served
    built = {name: build(name, cls, leaves) for name, cls in classes.items() if name == chosen}
    found = {name: made for name, made in built.items() if isinstance(made, Settings)}
    return {"", *SECTIONS, chosen, *_used(chosen, found)}


def _used(method: str, sections: Mapping[str, Settings]) -> list[str]:
    """Return the sections of the methods inside ``method``, and inside these, as far as they are built."""
    found: list[str] = []
    open_ends = [method]
    while open_ends:
        settings = sections.get(open_ends.pop())
        used = [section(name) for name in settings.uses()] if settings else []
        fresh = [name for name in used if name not in found and name != method]
        found += fresh
        open_ends += fresh
    return found


def _method_arguments(method: str, leaves: dict[str, Leaf], foreign: bool) -> dict[str, Scalar]:
    """Check that the method exists; return the constructor arguments of a Flower strategy's class."""
    if not foreign:
        if method not in METHODS and not is_import_path(method):
            where = leaves["method"].where
            others = ", and any Flower strategy or method of your own as package.module:NAME"
            raise unknown("method", method, where, list(METHODS), others)
        for key, leaf in leaves.items():
            if key.startswith(f"{STRATEGY}."):
                raise ConfigError(
                    f"{key} {where_phrase(leaf.where)} needs a Flower strategy, such as "
                    f"method=flwr.serverapp.strategy:FedAdam: {method} takes no {STRATEGY} arguments."
                )
        return {}
    arguments, problems = check_arguments(method, check_strategy(leaves["method"]), leaves)
    if problems:
        fail(problems)
    return arguments


def _paths(
    given: Mapping[str, Any], in_file: Mapping[str, Leaf]
) -> dict[str, tuple[Path | str, str]]:
    """Return the run's three paths, each with where it was given (empty for a default)."""
    found: dict[str, tuple[Path | str, str]] = {"resume": ("", "")}
    for key in PATH_KEYS:
        if key in given:
            found[key] = (_absolute(key, given[key], where_phrase(COMMAND_LINE)), COMMAND_LINE)
        elif key in in_file:
            found[key] = (Path(in_file[key].value), in_file[key].where)
        elif key in _DEFAULT_PATHS:
            found[key] = _from_variable(*_DEFAULT_PATHS[key])
    return found


def _from_variable(variable: str, default: str) -> tuple[Path, str]:
    if value := os.environ.get(variable, ""):
        where = f"the variable {variable}"
        return _absolute(variable, value, "in the environment"), where
    return from_home(default), ""


def _absolute(key: str, value: Any, where: str) -> Path:
    """Refuse a path that hangs on the working directory, which no two processes share."""
    if not isinstance(value, str) or "\0" in value:
        raise ConfigError(f"{key} {where} must be a path, not {show(value)}.")
    path = from_home(value)
    if not path.is_absolute():
        raise ConfigError(f"{key}={value!r} {where} must be an absolute path: {Path.cwd() / path}?")
    return path
