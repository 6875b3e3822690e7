"""What a constructor takes, read from its signature and those that it hands arguments on to."""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints


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
        except (NameError, TypeError):  # an annotation that cannot be evaluated constrains nothing
            hints = {}
        parameters = list(inspect.signature(constructor).parameters.values())[1:]
        for parameter in parameters:
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                found.setdefault(parameter.name, (parameter, hints.get(parameter.name, Any)))
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return found
