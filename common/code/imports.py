"""What users name by import path, ``package.module:name``: their own models, methods and strategies."""

from __future__ import annotations

import importlib
import inspect
import sys
from typing import Any, get_type_hints

from common.errors import ConfigError, near

HERE = "__main__"
"""The running program: a script, or a notebook, whose own definitions are found in its process alone."""


def is_import_path(name: str) -> bool:
    """Tell an import path, ``package.module:name``, from a name of Nectar's own."""
    return ":" in name


def append_to_path(folder: str) -> None:
    """Append ``folder`` to Python's search path, so that nothing in it hides a package."""
    if folder not in sys.path:
        sys.path.append(folder)


def load(path: str) -> Any:
    """Import what an import path names; ConfigError if the module cannot be imported or does not have the name."""
    module_name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's own module may raise anything while it is imported
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        lacking = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
        if lacking and f"{module_name}.".startswith(f"{lacking}."):
            reason += (
                " (searched: what is installed, PYTHONPATH, and the folder nectar was started in)"
            )
        raise ConfigError(f"{path} cannot be imported: {reason}.") from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        hint = near(attribute, dir(module))
        raise ConfigError(
            f"{path} does not exist: {module_name} has no {attribute!r}{hint}."
        ) from None


# ---- parameters ----------------------------------------------------------------------------------
# What a constructor takes, read from its signature and those that it hands arguments on to.


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
