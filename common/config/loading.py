"""From a run config to the resolved configuration: merge, validate, freeze."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from common.code.imports import is_import_path
from common.config.keys import (
    ACCEPT,
    BEST,
    COLUMNS_KEY,
    COMMAND_LINE,
    CONFIG,
    FETCH,
    FILE_KEY,
    PATH_KEYS,
    RESOLVED,
    RESUME_CODE,
    ROUND,
    SITES_KEY,
    STRATEGY,
    TABLES_KEY,
    TYPED,
    YES,
    Stated,
    fail,
    show,
    where_phrase,
)
from common.config.layers import (
    BASE,
    Layer,
    dataset_layer,
    flatten,
    kind_layer,
    merge,
    run_config_layers,
)
from common.config.resolved import Config, stated_here
from common.config.schema import read_sections, refuse_unknown_keys
from common.config.secret import alike
from common.config.tables import experiment_layers
from common.config.text import Scalar, from_home, read_yaml
from common.config.user_parts import (
    ImportPolicy,
    check_arguments,
    check_strategy,
    chosen_method,
    require_allowed,
    stated_arguments,
)
from common.errors import ConfigError
from common.methods import METHODS, Method, settings_of
from common.settings.sections import (
    FILE,
    FOLDERS,
    FORMS,
    TABLE_ENDING,
    ModelSettings,
    PrivacySettings,
    RunSettings,
    is_user_data,
    kind_of,
)

_DEFAULT_PATHS = {
    "output-dir": ("NECTAR_RUNS", "~/nectar/runs"),
    "data-dir": ("NECTAR_DATA", "~/.cache/nectar/data"),
}
"""Where a path comes from when it is not given: the variable, else the place."""


def load(run_config: Mapping[str, Any], *, policy: ImportPolicy | None = None) -> Config:
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
    policy : callable, optional
        A site's own: told (key, import path) of each thing that is named by import path before it is imported, and
        raises for what may not be. Where there is one, a Flower strategy is not imported at all, nor are its
        arguments checked: it is the server's.
    """
    if policy is None and (stated := stated_here(run_config)) is not None:
        return stated
    given = {key: value for key, value in run_config.items() if value != ""}  # which is unset
    _check_internal_keys(given, policy)
    experiment = given.get("experiment", "")
    if not isinstance(experiment, str):
        raise ConfigError(f"experiment must be a name, not {show(experiment)}.")
    layers, file = list(run_config_layers(given)), OwnFile()
    if RESOLVED not in given:
        file = read_own_file(given[CONFIG], experiment) if CONFIG in given else file
        layers = _with_files(experiment, file, layers, policy)
    leaves = merge(layers)
    _count_sites(leaves)
    if policy is not None:
        require_allowed(leaves, policy)
    own = chosen_method(leaves, policy)
    refuse_unknown_keys(run_config, leaves, own)
    read = read_sections(leaves, own)
    model = read.method.shaped(cast(ModelSettings, read.shared["model"]))
    privacy = cast(PrivacySettings, read.shared["privacy"])
    typed = leaves.get("privacy.epsilon")
    if typed and not privacy.epsilon and typed.where == COMMAND_LINE and RESOLVED not in given:
        raise ConfigError(
            "privacy.epsilon=0 would take endless noise, and means no privacy here: give one above 0, or leave it out."
        )
    # What `nectar` submits names the noise; of what `flwr run` does the sites plan the same as the server.
    if privacy.epsilon and (policy is None or RESOLVED not in given):
        from common.config.privacy_plan import planned_privacy  # seconds of imports

        privacy = planned_privacy(read, begins=RESOLVED not in given)
    label, paths = experiment or file.experiment, _paths(given, file.paths)
    places = {key: where for key, (_, where) in paths.items() if where}
    places |= {"experiment": COMMAND_LINE} if label else {}
    return Config(
        experiment=label,
        **read.run.model_dump(),
        output_dir=Path(paths["output-dir"][0]),
        data_dir=Path(paths["data-dir"][0]),
        resume=str(paths["resume"][0]),
        **cast(Any, {**read.shared, "model": model, "privacy": privacy}),
        settings=read.method,
        inner=read.inner,
        strategy=_strategy_arguments(read.run.method, leaves, own, policy),
        origin=places | {key: leaf.where for key, leaf in read.leaves.items()},
        typed=str(given.get(TYPED, "")),
        round=_round(given, str(paths["resume"][0])),
        resume_code=_resume_code(given, str(paths["resume"][0])),
    )


def _check_internal_keys(given: Mapping[str, Any], policy: ImportPolicy | None) -> None:
    """Refuse keys that say what is to be done with a run config, where they do not belong."""
    if FETCH in given:
        raise ConfigError(
            f"{FETCH} trains nothing: `nectar fetch CONNECTION RECORD` brings a record home."
        )
    if CONFIG in given and policy is not None:
        # What is wrong with a file is told by quoting it, and a site's files are none of the server's business.
        raise ConfigError(
            f"{CONFIG} is a path on the machine where it is typed, and cannot be sent to sites."
        )
    if RESOLVED in given and (given[RESOLVED] != YES or CONFIG in given):
        raise ConfigError(
            f"{RESOLVED} is what `nectar` submits a run with, as {RESOLVED}={YES}: leave it out."
        )


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


def _resume_code(given: Mapping[str, Any], resume: str) -> str:
    """Return ``accept`` where a record may be continued by other code than its own, else nothing."""
    told = given.get(RESUME_CODE, "")
    if told not in ("", ACCEPT):
        raise ConfigError(f"{RESUME_CODE} must be {ACCEPT}, or left out, not {show(told)}.")
    if told and not resume:
        raise ConfigError(f"{RESUME_CODE}={told} is of a run that is resumed: name its record too.")
    return str(told)


def _with_files(
    experiment: str, file: OwnFile, typed: list[Layer], policy: ImportPolicy | None
) -> list[Layer]:
    """Return the layers of a run config as it is typed: with the experiment, the file, the data set, the method."""
    named = experiment_layers(experiment) if experiment else []
    layers = [*named, *file.layers, *typed]
    if policy is not None:
        require_allowed(merge(layers), policy)
    layers = chosen_by_file(layers)
    leaves = merge(layers)
    return [
        _dataset_layer(leaves),
        *_features_layer(leaves),
        *_needed_layer(leaves, policy),
        *layers,
    ]


def _dataset_layer(leaves: Mapping[str, Stated]) -> Layer:
    """Read the file of the data set that is chosen."""
    leaf = leaves.get("dataset", Stated(RunSettings().dataset, "default"))
    if not isinstance(leaf.value, str):
        raise ConfigError(
            f"dataset {where_phrase(leaf.where)} must be a name, not {show(leaf.value)}."
        )
    own = user_dataset(leaves, leaf.value, leaf.where)
    layer = own or dataset_layer(leaf.value, leaf.where)
    if "dataset" in layer.values:
        raise ConfigError(
            f"dataset in {layer.where} must not be stated: the file's name is the name."
        )
    return layer


def _features_layer(leaves: Mapping[str, Stated]) -> list[Layer]:
    """Return what methods begin with that learn from a network's embeddings; it stands over the data set's file."""
    named = leaves.get("features.name")
    layer = kind_layer("features") if named is not None and named.value else None
    return [] if layer is None else [layer]


def _needed_layer(leaves: Mapping[str, Stated], policy: ImportPolicy | None) -> list[Layer]:
    """Return what the method that is chosen needs of other sections, where it names any."""
    name = leaves["method"].value if "method" in leaves else RunSettings().method
    known = chosen_method(leaves, policy) or METHODS.get(str(name))
    needed = dict(settings_of(known).needs()) if known is not None else {}
    if (secret := leaves.get("federation.secret")) is not None:
        needed |= alike(secret.value, known) if known is not None else {}
    return [Layer(f"method={name}", needed)] if needed else []


def _count_sites(leaves: dict[str, Stated]) -> None:
    """Let the folders or tables of simulated sites say how many there are, where nothing else does."""
    for key in (SITES_KEY, TABLES_KEY):
        sites = leaves.get(key)
        if sites is not None and sites.value and isinstance(sites.value, str | list):
            named = sites.value.split(",") if isinstance(sites.value, str) else sites.value
            leaves.setdefault("federation.sites", Stated(len(named), key))


def _strategy_arguments(
    method: str, leaves: Mapping[str, Stated], own: Method | None, policy: ImportPolicy | None
) -> dict[str, Scalar]:
    """Return the constructor arguments of a Flower strategy: checked where it is imported, which no site does."""
    given = stated_arguments(leaves)
    if own is None and is_import_path(method):
        if policy is not None:
            return {name: leaf.value for name, leaf in given.items()}
        arguments, problems = check_arguments(method, check_strategy(leaves["method"]), leaves)
        if problems:
            fail(problems)
        return arguments
    for name, leaf in given.items():
        raise ConfigError(
            f"{STRATEGY}.{name} {where_phrase(leaf.where)} needs a Flower strategy, such as "
            f"method=flwr.serverapp.strategy:FedAdam: {method} takes no {STRATEGY} arguments."
        )
    return {}


def _paths(
    given: Mapping[str, Any], in_file: Mapping[str, Stated]
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
    """Refuse a path that depends on the working directory, which no two processes share."""
    if not isinstance(value, str) or "\0" in value:
        raise ConfigError(f"{key} {where} must be a path, not {show(value)}.")
    path = from_home(value)
    if not path.is_absolute():
        raise ConfigError(
            f"{key}={value!r} {where} must be an absolute path. Did you mean {Path.cwd() / path}?"
        )
    return path


# ---- own file ------------------------------------------------------------------------------------
# A user's own file of settings: a few, by section, or what `nectar config` printed, or a record's.

SCHEMA = 2
"""The version that a record states, by which one of another release is known."""


@dataclass(frozen=True)
class OwnFile:
    """What such a file says."""

    layers: tuple[Layer, ...] = ()
    paths: Mapping[str, Stated] = field(default_factory=dict)
    experiment: str = ""


def read_own_file(named: Any, experiment: str) -> OwnFile:
    """Read the file that the run config's ``config`` names.

    ``base`` names an experiment that the file departs from. ``experiment`` is but a name, as it is in a resolved
    configuration, which states all there is to state. Relative paths start at the working directory, as typed ones.
    """
    where = _checked(named)
    values = flatten(read_yaml(from_home(where), where), where)
    if (schema := values.pop("schema", SCHEMA)) != SCHEMA:
        raise ConfigError(
            f"schema={show(schema)} in {where} is another release's: this one reads {SCHEMA}."
        )
    paths = {key: _path(key, values.pop(key), where) for key in PATH_KEYS if key in values}
    label = _label(values, where)
    layers = []
    if BASE in values:
        base = values.pop(BASE)
        if not isinstance(base, str):
            raise ConfigError(f"{BASE} in {where} must be a name, not {show(base)}.")
        if experiment and experiment != base:
            raise ConfigError(
                f"two experiments, {experiment} and {base} ({BASE} in {where}): name one."
            )
        layers = experiment_layers(base, where)
    stated = {key: leaf for key, leaf in paths.items() if leaf.value}
    return OwnFile((*layers, Layer(where, values)), stated, label)


def _checked(named: Any) -> str:
    if not isinstance(named, str) or "\0" in named:
        raise ConfigError(f"--config must be a file, not {show(named)}.")
    if not from_home(named).is_file():
        raise ConfigError(
            f"--config {named} is not a file: give the path of a YAML file of settings."
        )
    return named


def _label(values: dict[str, Any], where: str) -> str:
    label = values.pop("experiment", "")
    if not isinstance(label, str):
        raise ConfigError(f"experiment in {where} must be a name, not {show(label)}.")
    if label and not values.keys() >= RunSettings.model_fields.keys():
        raise ConfigError(
            f"experiment in {where} is only valid in a full configuration; to start from one, write {BASE}: {label}."
        )
    return label


def _path(key: str, value: Any, where: str) -> Stated:
    if not isinstance(value, str) or "\0" in value:
        raise ConfigError(f"{key} in {where} must be a path, not {show(value)}.")
    return Stated(str(Path.cwd() / from_home(value)) if value else "", where)


# ---- own data ------------------------------------------------------------------------------------
# Whether the settings of a data set of one's own hold together: file, form, sites' folders, and what leaves.

_IMPLIED = {
    FILE_KEY: FILE,
    COLUMNS_KEY: FILE,
    TABLES_KEY: FILE,
    "images.folder": FOLDERS,
    SITES_KEY: FOLDERS,
}
"""The data set that a place of one's own implies."""


def chosen_by_file(layers: Sequence[Layer]) -> list[Layer]:
    """Return the layers with what the places of one's own data (``_IMPLIED``) imply of ``dataset``.

    Where a later layer chooses another data set, the file or folder of an earlier one is dropped.
    """
    found = list(layers)
    for key, implied in _IMPLIED.items():
        found = _chosen_by(key, implied, found)
    return found


def _chosen_by(key: str, implied: str, layers: list[Layer]) -> list[Layer]:
    leaves = merge(layers)
    place, dataset = leaves.get(key), leaves.get("dataset")
    if place is None or not place.value:
        return layers
    if dataset is None:
        return [*layers, Layer(place.where, {"dataset": implied})]
    if _takes(key, str(dataset.value)) or dataset.where == place.where:
        return layers
    order = [layer.where for layer in layers]
    if order.index(place.where) > order.index(dataset.where):
        return [*layers, Layer(place.where, {"dataset": implied})]
    return [*layers, Layer(dataset.where, {key: ""})]


def _takes(key: str, dataset: str) -> bool:
    """Return whether a data set is one of a file, or of folders: any name that is not a public set's."""
    if _IMPLIED[key] == FILE:
        return dataset == FILE
    return is_user_data(dataset) and not kind_of(dataset)


def user_dataset(leaves: Mapping[str, Stated], dataset: str, where: str) -> Layer | None:
    """Return the layer of a data set that has no file in ``conf/dataset``, None for a name.

    It is that of a folder of images: sizes for some hundred or thousand pictures, whatever form they come in. Of a
    table, which a .csv file is, or of series it is theirs.
    """
    if kind := kind_of(dataset):
        return kind_layer(_arrays(leaves, kind)) or dataset_layer(FOLDERS, where)
    if ":" in dataset:
        others = ", ".join(f"{form.written}" for form in FORMS.values() if ":" in form.written)
        raise ConfigError(f"dataset={show(dataset)} {where_phrase(where)} must be one of {others}.")
    return None


def _arrays(leaves: Mapping[str, Stated], kind: str) -> str:
    """Return what the arrays of a set are, as it is stated or as its file's name says."""
    stated, file = leaves.get("data.kind"), leaves.get(FILE_KEY)
    if stated is not None:
        return str(stated.value)
    table = file is not None and str(file.value).endswith(TABLE_ENDING)
    return "table" if kind == FILE and (table or COLUMNS_KEY in leaves) else "images"
