"""Files of YAML 1.2: plain scalars as on the command line, and no key twice."""

from __future__ import annotations

import copy
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from common.config.text import Scalar, plain_scalar
from common.errors import ConfigError

_MAP, _PLAIN = "tag:yaml.org,2002:map", "!plain"


class _Loader(yaml.SafeLoader):
    """YAML with the plain scalars of 1.2, and no key twice in a mapping."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        if kind is yaml.ScalarNode and implicit[0]:
            return _PLAIN
        return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]


def _construct_plain(loader: _Loader, node: yaml.ScalarNode) -> Scalar:
    return plain_scalar(node.value) if node.value else None


def _construct_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    values: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = str(loader.construct_object(key_node, deep=True))
        if key in values:
            raise yaml.MarkedYAMLError(problem=f"{key!r} twice", problem_mark=key_node.start_mark)
        values[key] = loader.construct_object(value_node, deep=True)
    return values


_Loader.add_constructor(_PLAIN, _construct_plain)
_Loader.add_constructor(_MAP, _construct_mapping)


def read_yaml(path: Path, name: str) -> dict[str, Any]:
    """Read a YAML file that holds a mapping (or nothing), or raise ConfigError."""
    try:
        content = copy.deepcopy(_parsed(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{name} cannot be read: it is not UTF-8 text.") from None
    except RecursionError:
        raise ConfigError(f"{name} cannot be read: it is nested too deeply.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{name}, line {mark.line + 1}" if mark else name
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{place}, cannot be read: {reason}.") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{name} must hold keys and values, such as rounds: 5.")
    return content


@lru_cache(maxsize=64)
def _parsed(text: str) -> Any:
    """Parse a text once: a file of the catalogue is read for every configuration, and parsing takes most of that."""
    return yaml.load(text, _Loader)
