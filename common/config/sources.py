"""Where settings come from, in one order: the data set, what the method needs, experiment, own file, what is typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.config.keys import (
    COLUMNS_KEY,
    CONFIG,
    FILE_KEY,
    PATH_KEYS,
    RESOLVED,
    SITES_KEY,
    TABLES_KEY,
    Stated,
    show,
    where_phrase,
)
from common.config.layers import (
    BASE,
    Layer,
    dataset_layer,
    flatten,
    kind_layer,
    looked_up,
    run_config_layers,
)
from common.config.secret import alike
from common.config.tables import experiment_layers
from common.config.text import from_home, read_yaml
from common.config.user_parts import NAMING, ImportPolicy, chosen_method, require_allowed
from common.errors import ConfigError
from common.methods import METHODS, settings_of
from common.settings.sections import (
    FILE,
    FOLDERS,
    FORMS,
    TABLE_ENDING,
    RunSettings,
    is_user_data,
    kind_of,
)

SCHEMA = 2
"""The version that a record states, by which one of another release is known."""


@dataclass(frozen=True)
class Sources:
    """The sources of a run's settings: layers, of which the later ones win, and the paths and name of a user's file."""

    layers: Sequence[Layer]
    experiment: str = ""
    paths: Mapping[str, Stated] = field(default_factory=dict)


def sources_of(given: Mapping[str, Any], policy: ImportPolicy | None) -> Sources:
    """Return the sources of a run config, the lowest first; ConfigError if one cannot be read.

    Data set and method are looked up first, in what is typed, then in the own file, then in the experiment: they decide
    the layers below these. A run config that is resolved is its own only source.
    """
    experiment, typed = given.get("experiment", ""), run_config_layers(given)
    if not isinstance(experiment, str):
        raise ConfigError(f"experiment must be a name, not {show(experiment)}.")
    if RESOLVED in given:
        return Sources(typed, experiment)
    own = _own_file(given[CONFIG], experiment) if CONFIG in given else Sources(())
    layers = [*(experiment_layers(experiment) if experiment else ()), *own.layers, *typed]
    if policy is not None:
        require_allowed(looked_up(layers, *NAMING), policy)
    layers = _with_implied_set(layers)
    below = [*_counted(layers), *_of_data_set(layers), *_of_method(layers, policy)]
    return Sources([*below, *layers], experiment or own.experiment, own.paths)


def _counted(layers: Sequence[Layer]) -> list[Layer]:
    """Let the folders or tables of simulated sites say how many there are, where nothing else does."""
    counts = []
    for key, leaf in looked_up(layers, TABLES_KEY, SITES_KEY).items():
        if leaf.value and isinstance(leaf.value, str | list):
            named = leaf.value.split(",") if isinstance(leaf.value, str) else leaf.value
            counts.append(Layer(key, {"federation.sites": len(named)}))
    return counts


def _of_method(layers: Sequence[Layer], policy: ImportPolicy | None) -> list[Layer]:
    """Return the settings of other sections that the chosen method needs, if it names any."""
    chosen = looked_up(layers, "method", "federation.secret")
    name = chosen["method"].value if "method" in chosen else RunSettings().method
    known = chosen_method(chosen, policy) or METHODS.get(str(name))
    if known is None:
        return []
    needed = dict(settings_of(known).needs())
    if "federation.secret" in chosen:
        needed |= alike(chosen["federation.secret"].value, known)
    return [Layer(f"method={name}", needed)] if needed else []


# ---- the data set --------------------------------------------------------------------------------

_IMPLIED = {
    FILE_KEY: FILE,
    COLUMNS_KEY: FILE,
    TABLES_KEY: FILE,
    "images.folder": FOLDERS,
    SITES_KEY: FOLDERS,
}
"""The data set that a path to user data implies."""


def _with_implied_set(layers: list[Layer]) -> list[Layer]:
    """Return the layers with the ``dataset`` that paths to user data (``_IMPLIED``) imply.

    Where a later layer chooses another data set, the file or folder of an earlier one is dropped.
    """
    order = [layer.where for layer in layers]
    for key, implied in _IMPLIED.items():
        found = looked_up(layers, key, "dataset")
        place, dataset = found.get(key), found.get("dataset")
        if place is None or not place.value:
            continue
        if dataset is not None:
            if _takes(implied, str(dataset.value)) or dataset.where == place.where:
                continue
            if order.index(place.where) < order.index(dataset.where):
                layers = [*layers, Layer(dataset.where, {key: ""})]
                continue
        layers = [*layers, Layer(place.where, {"dataset": implied})]
    return layers


def _takes(implied: str, dataset: str) -> bool:
    """Return whether a data set is one of a file, or of folders: any name that is not a public set's."""
    if implied == FILE:
        return dataset == FILE
    return is_user_data(dataset) and not kind_of(dataset)


def _of_data_set(layers: Sequence[Layer]) -> list[Layer]:
    """Read the chosen data set's file; for user data that of its kind, whose sizes are for small sets.

    On top are the defaults of methods that learn from a network's embeddings.
    """
    found = looked_up(layers, "dataset", "features.name", "data.kind", FILE_KEY, COLUMNS_KEY)
    leaf = found.get("dataset", Stated(RunSettings().dataset, "default"))
    name, where = leaf.value, where_phrase(leaf.where)
    if not isinstance(name, str):
        raise ConfigError(f"dataset {where} must be a name, not {show(name)}.")
    kind = kind_of(name)
    if kind is None and ":" in name:
        others = ", ".join(f"{form.written}" for form in FORMS.values() if ":" in form.written)
        raise ConfigError(f"dataset={show(name)} {where} must be one of {others}.")
    of_kind = kind_layer(_arrays(found, kind)) if kind else None
    layer = of_kind or dataset_layer(FOLDERS if kind else name, leaf.where)
    if "dataset" in layer.values:
        raise ConfigError(
            f"dataset in {layer.where} must not be stated: the file's name is the name."
        )
    features = found.get("features.name")
    embedded = kind_layer("features") if features and features.value else None
    return [layer, *([embedded] if embedded else [])]


def _arrays(found: Mapping[str, Stated], kind: str) -> str:
    """Return the kind of a set's arrays, as stated or as its file's name implies."""
    if "data.kind" in found:
        return str(found["data.kind"].value)
    table = FILE_KEY in found and str(found[FILE_KEY].value).endswith(TABLE_ENDING)
    return "table" if kind == FILE and (table or COLUMNS_KEY in found) else "images"


# ---- own file ------------------------------------------------------------------------------------
# A user's own file of settings: a few, by section, or what `nectar config` printed, or a record's.


def _own_file(named: Any, experiment: str) -> Sources:
    """Read the file that the run config's ``config`` names.

    ``base`` names an experiment that the file departs from. ``experiment`` is only a name, as in a resolved
    configuration, which states all there is to state. Relative paths start at the working directory, as typed ones.
    """
    if not isinstance(named, str) or "\0" in named:
        raise ConfigError(f"--config must be a file, not {show(named)}.")
    if not from_home(named).is_file():
        raise ConfigError(
            f"--config {named} is not a file: give the path of a YAML file of settings."
        )
    values = flatten(read_yaml(from_home(named), named), named)
    if (schema := values.pop("schema", SCHEMA)) != SCHEMA:
        raise ConfigError(
            f"schema={show(schema)} in {named} is another release's: this one reads {SCHEMA}."
        )
    named_paths = {key: values.pop(key) for key in PATH_KEYS if key in values}
    paths = {
        key: Stated(path_of(key, value, named, from_here=True), named)
        for key, value in named_paths.items()
        if value != ""
    }
    label, base = _name(values, "experiment", named), _name(values, BASE, named)
    if label and not values.keys() >= RunSettings.model_fields.keys():
        raise ConfigError(
            f"experiment in {named} is only valid in a full configuration; to start from one, write {BASE}: {label}."
        )
    if base and experiment not in ("", base):
        raise ConfigError(
            f"two experiments, {experiment} and {base} ({BASE} in {named}): name one."
        )
    base_layers = experiment_layers(base, named) if base else []
    return Sources((*base_layers, Layer(named, values)), label, paths)


def _name(values: dict[str, Any], key: str, where: str) -> str:
    """Remove a name from a file's values and return it, empty if it is missing."""
    name = values.pop(key, "")
    if not isinstance(name, str):
        raise ConfigError(f"{key} in {where} must be a name, not {show(name)}.")
    return name


def path_of(key: str, value: Any, where: str, *, from_here: bool = False) -> Path:
    """Read a path, ``from_here`` one that may be relative: else no two processes share what it starts from."""
    if not isinstance(value, str) or "\0" in value:
        raise ConfigError(f"{key} {where_phrase(where)} must be a path, not {show(value)}.")
    path = from_home(value)
    if not path.is_absolute() and not from_here:
        raise ConfigError(
            f"{key}={value!r} {where_phrase(where)} must be an absolute path. Did you mean {Path.cwd() / path}?"
        )
    return Path.cwd() / path
