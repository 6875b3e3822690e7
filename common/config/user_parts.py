"""What a configuration names by import path: a method and a model of the user's own, a Flower strategy."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo

from common.code.imports import constructor_parameters, is_import_path, load
from common.config.keys import RUN_KEYS, STRATEGY, Stated, fail, show, where_phrase
from common.config.text import Scalar
from common.errors import ConfigError, near, nearest
from common.methods import METHODS, Method, user_method
from common.models.registry import MODELS
from common.settings.section import kind_words
from common.settings.sections import SECTIONS, module_of

ImportPolicy = Callable[[str, str], None]
"""Raises if a setting, by its key, may not name an import path."""

PART = "a part of its method"
"""What an import policy is given as the key, of the client and the settings that a method names."""

NAMING = ("method", "model.name", "features.name", "dataset")
"""The settings that may be import paths."""

RESERVED = {*METHODS, *SECTIONS, *RUN_KEYS, STRATEGY, "run", "base"}


def require_allowed(leaves: Mapping[str, Stated], policy: ImportPolicy) -> None:
    """Put every import path that is named before ``policy``; nothing is imported."""
    for key in NAMING:
        value = leaves[key].value if key in leaves else ""
        if not isinstance(value, str) or not is_import_path(value):
            continue
        if key == "dataset" and not module_of(
            value
        ):  # torchvision's sets and the hub's are no modules of anybody's
            continue
        policy(key, value)


def chosen_method(
    leaves: Mapping[str, Stated], policy: ImportPolicy | None = None
) -> Method | None:
    """Return the method of the user's own that is chosen; None for one of Nectar's and for a Flower strategy."""
    leaf = leaves.get("method")
    if leaf is None or not isinstance(leaf.value, str) or not is_import_path(leaf.value):
        return None
    where = where_phrase(leaf.where)
    try:
        found = user_method(leaf.value)
    except ConfigError as error:
        if not leaf.value.startswith("flwr."):
            raise ConfigError(f"method {where}: {error}") from error
        raise
    if found is None:
        return None
    if not re.fullmatch(r"[a-z][a-z0-9_]*", found.name) or found.name in RESERVED:
        why = "is taken" if found.name in RESERVED else "cannot name a section"
        raise ConfigError(
            f"method={leaf.value!r} {where} calls itself {found.name!r}, which {why}: choose another name, of small "
            "letters, digits and underscores."
        )
    for part in (found.client, found.settings) if policy else ():
        policy(PART, part)  # type: ignore[misc]
    return found


def model_problems(leaves: Mapping[str, Stated]) -> list[str]:
    """Describe an unknown model or network and name the nearest one."""
    problems = []
    for key in ("model.name", "features.name"):
        leaf = leaves.get(key)
        if leaf is None or not isinstance(leaf.value, str) or is_import_path(leaf.value):
            continue
        if leaf.value in MODELS or (key == "features.name" and not leaf.value):
            continue
        problems.append(
            f"{key}={show(leaf.value)} {where_phrase(leaf.where)} is unknown{near(leaf.value, MODELS)}: there are "
            f"{', '.join(MODELS)}, and your own as package.module:callable."
        )
    return problems


_SCALARS = (int, float, str, bool, NoneType)


def _refused(value: Any) -> NoReturn:
    raise ValueError("no setting is an object")


_OBJECT = Annotated[Any, BeforeValidator(_refused)]
"""What an argument is that no setting can give."""


class _Arguments(BaseModel):
    """A constructor's arguments, as strict as every section."""

    model_config = ConfigDict(extra="forbid", strict=True)


def check_strategy(leaf: Stated) -> type[Any]:
    """Import a strategy's class and see that it is one of Flower's kind, or raise ConfigError."""
    from flwr.serverapp.strategy import (  # seconds of imports, for these methods only
        FedXgbBagging,
        FedXgbCyclic,
        Strategy,
    )

    try:
        found = load(leaf.value)
    except ConfigError as error:
        module, _, name = leaf.value.partition(":")
        if module == "flwr.serverapp.strategy":
            raise _unknown_flower_strategy(name, leaf) from None
        raise ConfigError(f"method {where_phrase(leaf.where)}: {error}") from error
    if not (inspect.isclass(found) and issubclass(found, Strategy)) or inspect.isabstract(found):
        raise ConfigError(
            f"method={leaf.value!r} {where_phrase(leaf.where)} is neither a Flower strategy nor a method "
            "of yours: it must name a complete subclass of flwr.serverapp.strategy.Strategy, or a "
            "common.methods.Method."
        )
    if issubclass(found, FedXgbBagging | FedXgbCyclic):
        raise ConfigError(
            f"method={leaf.value!r} {where_phrase(leaf.where)} moves XGBoost's trees, and Nectar's devices train a "
            "model's weights: choose a strategy that averages weights, such as flwr.serverapp.strategy:FedAvg."
        )
    return found


def _unknown_flower_strategy(name: str, leaf: Stated) -> ConfigError:
    from flwr.serverapp import strategy

    known = [
        other
        for other, found in vars(strategy).items()
        if inspect.isclass(found)
        and issubclass(found, strategy.Strategy)
        and not inspect.isabstract(found)
        and not other.startswith("FedXgb")  # trees, refused by check_strategy
    ]
    return ConfigError(
        f"method={leaf.value!r} {where_phrase(leaf.where)} is unknown{near(name, known)}: "
        f"{strategy.__name__} has {', '.join(known)}."
    )


def arguments_model(cls: type[Any]) -> type[_Arguments]:
    """Make a model of a constructor's parameters; by alias, since a parameter may be called as a model's attribute."""
    fields: dict[str, Any] = {}
    for name, (parameter, annotation) in constructor_parameters(cls).items():
        default = ... if parameter.default is parameter.empty else parameter.default
        kind = _OBJECT if name.startswith("_") else _scalar_type(annotation)
        fields[f"argument_{name}"] = (kind, Field(default, alias=name))
    return create_model(f"{cls.__name__}Arguments", __base__=_Arguments, **fields)


def _scalar_type(annotation: Any) -> Any:
    """Return the part of a type that a configuration can state.

    ``int | None`` stays; ``Callable | None`` and a class have no such part.
    """
    if annotation is Any:
        return str | int | float | bool | None
    union = get_origin(annotation) in (Union, UnionType)
    members = get_args(annotation) if union else (annotation,)
    plain = [part for part in members if part in _SCALARS or get_origin(part) is Literal]
    if all(part is NoneType for part in plain):
        return _OBJECT
    return Union[tuple(plain)]  # noqa: UP007 - built from a list


def settable(model: type[_Arguments]) -> dict[str, FieldInfo]:
    """Return the arguments that a setting can give, by name."""
    fields = model.model_fields.values()
    return {str(field.alias): field for field in fields if field.annotation is not Any}


def check_arguments(path: str, cls: type[Any], given: Mapping[str, Stated]) -> dict[str, Scalar]:
    """Check the arguments of the ``strategy`` section against a constructor; one ConfigError lists all problems."""
    model = arguments_model(cls)
    try:
        read = model.model_validate({name: leaf.value for name, leaf in given.items()})
    except ValidationError as error:
        wrong = dict.fromkeys(str(each["loc"][0]) for each in error.errors())
        stated = [
            _problem(name, leaf, path, model) for name, leaf in given.items() if name in wrong
        ]
        fail(stated + [_missing(name, path, model) for name in wrong if name not in given])
    return read.model_dump(by_alias=True, exclude_unset=True)


def stated_arguments(leaves: Mapping[str, Stated]) -> dict[str, Stated]:
    """Return the values of the ``strategy`` section by the argument's name."""
    prefix = f"{STRATEGY}."
    return {
        key.removeprefix(prefix): leaf for key, leaf in leaves.items() if key.startswith(prefix)
    }


def _problem(name: str, leaf: Stated, path: str, model: type[_Arguments]) -> str:
    """Return why an argument that is given cannot be."""
    known, where = settable(model), where_phrase(leaf.where)
    if name in known:
        allowed = kind_words(known[name].annotation)
        return f"{STRATEGY}.{name}={show(leaf.value)} {where} must be {allowed}."
    given = f"{STRATEGY}.{name} {where}"
    if f"argument_{name}" in model.model_fields and not name.startswith("_"):
        return (
            f"{given} cannot be set: {path} takes an object there, and a setting is text or number."
        )
    guess = nearest(name, known)
    hint = f"did you mean {STRATEGY}.{guess}?" if guess else f"it takes {', '.join(known)}."
    return f"{given} is not an argument of {path}: {hint}"


def _missing(name: str, path: str, model: type[_Arguments]) -> str:
    if name in settable(model):
        return f"{path} needs a value for {STRATEGY}.{name}."
    return (
        f"{path} needs an object for {name!r}, which no setting can give: "
        "name a subclass of yours whose constructor makes it."
    )
