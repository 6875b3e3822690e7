"""Where values come from: dataset file, experiment, run config; the later one wins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BeforeValidator

from common.code.imports import is_import_path
from common.config.keys import (
    COMMAND_LINE,
    FILE_KEY,
    RUN_KEYS,
    SHORT,
    SITES_KEY,
    START_KEY,
    STRATEGY,
    TABLES_KEY,
    Stated,
    show,
    unknown,
)
from common.config.text import from_home, parse_set, read_yaml
from common.errors import ConfigError
from common.methods import METHODS
from common.settings.sections import SECTIONS, RunSettings, forms_in_words

CONF = Path(__file__).parents[2] / "conf"

_STEPS, _EPOCHS = "image_training.steps", "image_training.epochs"
_EITHER = {_STEPS: _EPOCHS, _EPOCHS: _STEPS}
"""Settings of which one is given, each with the other."""

BASE = "base"
"""The key that names the experiment which a table, or a user's file, departs from."""


@dataclass(frozen=True)
class Layer:
    """Values of one source, by dotted key."""

    where: str
    values: Mapping[str, Any]


def names(kind: str) -> tuple[str, ...]:
    """List the files of ``conf/<kind>``: the known data sets, or tables."""
    return tuple(sorted(path.stem for path in (CONF / kind).glob("*.yaml")))


def dataset_layer(name: str, where: str) -> Layer:
    """Read ``conf/dataset/<name>.yaml``, or raise ConfigError."""
    known = names("dataset")
    if name not in known:
        as_method = name in METHODS or is_import_path(name)
        hint = f"; a method is chosen by method={name}" if as_method else ""
        raise unknown("dataset", name, where, known, f"{hint}; your own is {forms_in_words()}")
    return _file_layer("dataset", name)


def kind_layer(kind: str) -> Layer | None:
    """Read ``conf/kind/<kind>.yaml``, the defaults of user-defined sets that are not images; None for images."""
    return _file_layer("kind", kind) if kind in names("kind") else None


def _file_layer(kind: str, name: str) -> Layer:
    source = f"conf/{kind}/{name}.yaml"
    return Layer(source, flatten(read_yaml(CONF / kind / f"{name}.yaml", source), source))


def flatten(content: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Turn a file's sections into dotted keys; a section may be empty, never a single value.

    ConfigError if a setting is there twice, once in a section and once by its dotted or short key.
    """
    values: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            found = {f"{key}.{name}": inner for name, inner in value.items()}
        elif key in SHORT and value is not None:
            found = {SHORT[key]: value}
        elif key in SECTIONS or key in METHODS or key == STRATEGY:
            if value is not None:
                raise ConfigError(f"{key} in {source} must hold settings, not {show(value)}.")
            continue
        else:
            found = {key: value}
        for twice in found.keys() & values:
            raise ConfigError(f"{twice} is twice in {source}: leave one out.")
        values |= {name: _from_home(name, inner) for name, inner in found.items()}
    return values


def _from_home(key: str, value: Any) -> Any:
    """Return the value of a setting; of paths of the user's own data, those that begin with ``~`` made absolute."""
    if key not in (FILE_KEY, START_KEY, SITES_KEY, TABLES_KEY) or not isinstance(value, str):
        return value
    return ",".join(str(from_home(p)) if p.startswith("~") else p for p in value.split(","))


def run_config_layers(given: Mapping[str, Any]) -> tuple[Layer, Layer]:
    """Split the run config into its own settings, with unknown keys, and what its ``set`` assigns."""
    own = {k: v for k, v in given.items() if k in RunSettings.model_fields or k not in RUN_KEYS}
    text = given.get("set", "")
    if not isinstance(text, str):
        raise ConfigError(f"set must be a text such as 'partition.alpha=0.01', not {show(text)}.")
    return Layer(COMMAND_LINE, own), Layer(COMMAND_LINE, parse_set(text, is_text))


def is_text(key: str) -> bool:
    """Return whether a setting is a text: a number that is typed for it is one, too."""
    from common.config.schema import section_class

    name, _, field = key.partition(".")
    cls = section_class(name)
    known = cls.model_fields.get(field) if cls is not None else None
    before = known is not None and any(isinstance(m, BeforeValidator) for m in known.metadata)
    return known is not None and known.annotation is str and not before


def looked_up(layers: Sequence[Layer], *keys: str) -> dict[str, Stated]:
    """Return each key's value in the last layer that states it; keys that no layer states are left out."""
    return {k: Stated(v, one.where) for one in layers for k, v in one.values.items() if k in keys}


def merge(layers: Iterable[Layer]) -> dict[str, Stated]:
    """Merge layers; the later one wins.

    Arguments for a strategy belong to the strategy chosen when they were given: a later layer that
    chooses another method drops them, so that an experiment serves with another ``method=``. Of two settings that
    say the same thing in two ways, a later layer's one takes the place of an earlier layer's other one.
    """
    leaves: dict[str, Stated] = {}
    for layer in layers:
        chosen = layer.values.get("method")
        before = leaves["method"].value if "method" in leaves else None
        if chosen is not None and chosen != before:
            leaves = {key: leaf for key, leaf in leaves.items() if not key.startswith("strategy.")}
        for key, other in _EITHER.items():
            if layer.values.get(key) and other not in layer.values:
                leaves.pop(other, None)
        leaves |= {key: Stated(value, layer.where) for key, value in layer.values.items()}
    return leaves
