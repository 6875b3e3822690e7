"""Values as text: the scalars and files of YAML 1.2, and the ``set`` key of the run config.

PyYAML speaks YAML 1.1, where the key ``on`` is a boolean, ``1e-3`` a text and ``010`` eight. Here a
plain word is null, a boolean, an integer or a float as in the core schema of 1.2, else a text; no key is there twice.
"""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from common.errors import ConfigError

Scalar = str | int | float | bool | None

_WORDS: Mapping[str, bool | None] = {
    spelling: value
    for word, value in (("null", None), ("true", True), ("false", False))
    for spelling in (word, word.capitalize(), word.upper())
} | {"~": None}
_INTEGER = re.compile(r"[-+]?[0-9]{1,40}", re.ASCII)
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
    re.ASCII,
)
_FLOAT_TAG = "tag:yaml.org,2002:float"


def plain_scalar(text: str) -> Scalar:
    """Read an unquoted YAML scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def scalar(text: str) -> Scalar:
    """Read a value from the command line: a YAML scalar; single quotes force a text.

    ``3`` is an integer, ``'3'`` a text, and nothing at all the empty text.
    """
    if len(text) >= 2 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    return plain_scalar(text)


def scalar_text(value: Scalar) -> str:
    """Write a value so that :func:`scalar` reads the same one back."""
    if isinstance(value, str):
        return value if scalar(value) == value else "'" + value.replace("'", "''") + "'"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def join_set(values: Mapping[str, Scalar]) -> str:
    """Write dotted keys and their values as the run config's ``set``."""
    return shlex.join(f"{key}={scalar_text(value)}" for key, value in values.items())


def parse_set(text: str, is_text: Callable[[str], bool] = lambda key: False) -> dict[str, Scalar]:
    """Read ``set``: ``a.b=c d.e=f``, split as a shell does, the last wins; ConfigError for no such words.

    What is typed for a key that ``is_text`` stays text, even if it looks like a number.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"set={text!r} cannot be split into words: {error}.") from None
    values: dict[str, Scalar] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise ConfigError(f"{word!r} in set is not key=value, such as partition.alpha=0.01.")
        found = scalar(value)
        values[key] = value if is_text(key) and not isinstance(found, str) else found
    return values


class _Dumper(yaml.SafeDumper):
    """YAML that a reader of 1.1 and one of 1.2 understand alike."""


_Dumper.add_implicit_resolver(
    _FLOAT_TAG, re.compile(f"(?:{_FLOAT.pattern})$"), list("-+.0123456789")
)


def yaml_line(key: str, value: Scalar) -> str:
    """Write one ``key: value`` on a separate line."""
    style = '"' if isinstance(value, str) and not value.isprintable() else None
    text = yaml.dump(
        {key: value},
        Dumper=_Dumper,
        default_style=style,
        width=2**31 - 1,
        allow_unicode=True,
    )
    return text.rstrip("\n")


def dotted(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by dotted key."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= dotted(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def from_home(text: str) -> Path:
    """Read a path that may begin with ``~``; ConfigError if the home directory it names is not known."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ConfigError(
            f"{text!r} begins in a home directory that is not known here: give absolute paths "
            "(output-dir and data-dir, or NECTAR_RUNS and NECTAR_DATA)."
        ) from None


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
