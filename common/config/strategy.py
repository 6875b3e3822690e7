"""The constructor arguments of a Flower strategy that is named by its import path."""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from common.code.imports import load
from common.config.keys import STRATEGY, Leaf
from common.config.problems import nearest, show, where_phrase
from common.config.text import Scalar
from common.errors import ConfigError
from common.settings.describe import Description

_SCALARS = (int, float, str, bool, types.NoneType)


def check_strategy(leaf: Leaf) -> type[Any]:
    """Import a strategy's class and see that it is one of Flower's kind.

    Raises
    ------
    ConfigError
        If it cannot be imported, is no subclass of ``flwr.serverapp.strategy.Strategy``, or moves no weights.
    """
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
            f"method={leaf.value!r} {where_phrase(leaf.where)} is no Flower strategy and no method "
            "of your own: it must name a complete subclass of flwr.serverapp.strategy.Strategy, or a "
            "common.methods.Method."
        )
    if issubclass(found, FedXgbBagging | FedXgbCyclic):
        raise ConfigError(
            f"method={leaf.value!r} {where_phrase(leaf.where)} moves XGBoost's trees, and Nectar's devices train a "
            "model's weights: choose a strategy that averages weights, such as flwr.serverapp.strategy:FedAvg."
        )
    return found


def _unknown_flower_strategy(name: str, leaf: Leaf) -> ConfigError:
    from flwr.serverapp import strategy

    known = [
        other
        for other, found in vars(strategy).items()
        if inspect.isclass(found)
        and issubclass(found, strategy.Strategy)
        and not inspect.isabstract(found)
        and not other.startswith("FedXgb")  # trees, refused by check_strategy
    ]
    guess = nearest(name, known)
    hint = f", the nearest is {guess}" if guess else ""
    return ConfigError(
        f"method={leaf.value!r} {where_phrase(leaf.where)} is unknown{hint}: "
        f"{strategy.__name__} has {', '.join(known)}."
    )


def constructor_parameters(cls: type[Any]) -> dict[str, tuple[inspect.Parameter, Any]]:
    """Collect a constructor's named parameters with their types.

    A constructor that takes ``**kwargs`` hands them on to the next one, whose parameters count too.
    """
    found: dict[str, tuple[inspect.Parameter, Any]] = {}
    for owner in cls.__mro__:
        constructor = owner.__dict__.get("__init__")
        if constructor is None or owner is object:
            continue
        try:
            hints = get_type_hints(constructor)
        except (
            NameError,
            TypeError,
        ):  # a user's annotation that cannot be evaluated constrains nothing
            hints = {}
        parameters = list(inspect.signature(constructor).parameters.values())[1:]
        for parameter in parameters:
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                found.setdefault(parameter.name, (parameter, hints.get(parameter.name, Any)))
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return found


def _scalar_type(annotation: Any) -> Any:
    """Return the part of a type that a configuration can state, or None if it has none.

    ``int | None`` stays; ``Callable | None`` and a class have no such part.
    """
    if annotation is Any:
        return str | int | float | bool | None
    union = get_origin(annotation) in (Union, types.UnionType)
    members = get_args(annotation) if union else (annotation,)
    plain = [part for part in members if part in _SCALARS or get_origin(part) is Literal]
    if all(part is types.NoneType for part in plain):
        return None
    return Union[tuple(plain)]  # noqa: UP007 - built from a list


def _type_words(kind: Any) -> str:
    words = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    members = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    parts = []
    for part in members:
        if get_origin(part) is Literal:
            parts.append("one of " + ", ".join(map(str, get_args(part))))
        else:
            parts.append(words.get(part, "null"))
    return " or ".join(parts)


def check_arguments(
    path: str, cls: type[Any], leaves: Mapping[str, Leaf]
) -> tuple[dict[str, Scalar], list[str]]:
    """Check the ``strategy`` section against a constructor.

    Parameters
    ----------
    path : str
        The strategy's import path.
    cls : type
        Its class.
    leaves : mapping of str to Leaf
        Every value given, by dotted key.

    Returns
    -------
    arguments : dict
        What to construct the strategy with.
    problems : list of str
        A sentence for each argument that does not exist, cannot be given as text, has the wrong
        type or is missing.
    """
    parameters = constructor_parameters(cls)
    settable = _settable(parameters)
    arguments: dict[str, Scalar] = {}
    problems: list[str] = []
    for key, leaf in leaves.items():
        section, _, name = key.partition(".")
        if section != STRATEGY:
            continue
        try:
            if name not in settable:
                raise ConfigError(_inapplicable(name, path, leaf, parameters, list(settable)))
            arguments[name] = _typed(key, leaf, settable[name])
        except ConfigError as error:
            problems.append(str(error))
    for name, (parameter, _) in parameters.items():
        if parameter.default is parameter.empty and f"{STRATEGY}.{name}" not in leaves:
            problems.append(_missing(name, path, name in settable))
    return arguments, problems


def _settable(parameters: Mapping[str, tuple[inspect.Parameter, Any]]) -> dict[str, Any]:
    """Return the parameters that a configuration can give, with the scalar part of their types."""
    return {
        name: kind
        for name, (_, annotation) in parameters.items()
        if not name.startswith("_") and (kind := _scalar_type(annotation)) is not None
    }


def describe_arguments(cls: type[Any]) -> list[Description]:
    """Describe the arguments of a strategy that the ``strategy`` section can give."""
    parameters = constructor_parameters(cls)
    return [
        Description(
            name=name,
            default=parameters[name][0].default,
            allowed=_type_words(kind),
            meaning="",
            symbol="",
            source="",
            required=parameters[name][0].default is inspect.Parameter.empty,
        )
        for name, kind in _settable(parameters).items()
    ]


def _typed(key: str, leaf: Leaf, kind: Any) -> Scalar:
    try:
        value: Scalar = TypeAdapter(kind).validate_python(leaf.value, strict=True)
    except ValidationError:
        raise ConfigError(
            f"{key}={show(leaf.value)} {where_phrase(leaf.where)} must be {_type_words(kind)}."
        ) from None
    return value


def _inapplicable(
    name: str, path: str, leaf: Leaf, parameters: Mapping[str, Any], settable: list[str]
) -> str:
    given = f"{STRATEGY}.{name} {where_phrase(leaf.where)}"
    if name in parameters and not name.startswith("_"):
        return (
            f"{given} cannot be set: {path} takes an object there, and a setting is text or number."
        )
    guess = nearest(name, settable)
    hint = f"did you mean {STRATEGY}.{guess}?" if guess else f"it takes {', '.join(settable)}."
    return f"{given} is no argument of {path}: {hint}"


def _missing(name: str, path: str, can_be_set: bool) -> str:
    if can_be_set:
        return f"{path} needs a value for {STRATEGY}.{name}."
    return (
        f"{path} needs an object for {name!r}, which no setting can give: "
        "name a subclass of yours whose constructor makes it."
    )
