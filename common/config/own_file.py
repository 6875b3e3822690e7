"""A user's own file of settings: a few, by section, or what `nectar config` printed, or a record's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.config.keys import PATH_KEYS, Leaf
from common.config.layers import BASE, Layer, flatten
from common.config.problems import show
from common.config.tables import experiment_layers
from common.config.text import from_home
from common.config.yaml_file import read_yaml
from common.errors import ConfigError
from common.settings.sections import RunSettings

SCHEMA = 2
"""The version that a record states, by which one of another release is known."""


@dataclass(frozen=True)
class OwnFile:
    """What such a file says.

    Parameters
    ----------
    layers : tuple of Layer
        Its settings, and below them those of the experiment that it departs from.
    paths : mapping of str to Leaf
        Its paths by key, absolute.
    experiment : str
        Of a configuration that states all: the experiment that it came of.
    """

    layers: tuple[Layer, ...] = ()
    paths: Mapping[str, Leaf] = field(default_factory=dict)
    experiment: str = ""


def read_own_file(named: Any, experiment: str) -> OwnFile:
    """Read the file that the run config's ``config`` names.

    ``base`` names an experiment that the file departs from. ``experiment`` is but a name, as it stands in a resolved
    configuration, which states all there is to state. Relative paths start at the working directory, as typed ones.

    Parameters
    ----------
    experiment : str
        The experiment that the run config names; empty if none.

    Raises
    ------
    ConfigError
        If there is no such file, or it is not made of keys and sections; it is named.
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
            f"experiment in {where} is read in a whole configuration alone, where it is but a name: write "
            f"{BASE}: {label} for what this file departs from."
        )
    return label


def _path(key: str, value: Any, where: str) -> Leaf:
    if not isinstance(value, str) or "\0" in value:
        raise ConfigError(f"{key} in {where} must be a path, not {show(value)}.")
    return Leaf(str(Path.cwd() / from_home(value)) if value else "", where)
