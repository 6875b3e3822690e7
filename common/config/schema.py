"""Which keys exist, and the check of every value against the settings class of its section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from common.config.keys import RUN_KEYS, STRATEGY, Leaf
from common.config.problems import nearest_key, show, where_phrase
from common.methods import METHODS, Method, settings_of
from common.settings.base import Settings
from common.settings.describe import allowed
from common.settings.sections import SECTIONS, RunSettings


def method_classes(own: Method | None = None) -> dict[str, type[Settings]]:
    """Return every method's settings class by the method's name; ``own`` is a user's own one, if it is chosen."""
    known = METHODS if own is None else {**METHODS, own.name: own}
    return {name: settings_of(method) for name, method in known.items()}


def section_classes(own: Method | None = None) -> dict[str, type[Settings]]:
    """Return every section with its class: the run-wide ones, then one for each method."""
    return SECTIONS | method_classes(own)


def known_keys(own: Method | None = None) -> list[str]:
    """List every key of the configuration, dotted; the strategy's free arguments excepted."""
    dotted = [
        f"{section}.{name}"
        for section, cls in section_classes(own).items()
        for name in cls.model_fields
    ]
    return [*RunSettings.model_fields, *dotted]


def taken_over(leaves: Mapping[str, Leaf], own: Method | None = None) -> dict[str, Leaf]:
    """Return what methods take over from the method whose settings class theirs inherits, by their own dotted keys.

    What a file says of FedAvg's local training thus holds for every method that trains as FedAvg does, unless it is
    given a value of its own: a variant is compared at equal settings, not with its class's defaults.
    """
    classes = method_classes(own)
    names = {cls: name for name, cls in classes.items()}
    found: dict[str, Leaf] = {}
    for name, cls in classes.items():
        for parent in (base for base in cls.__mro__[1:] if base in names):
            for field in parent.model_fields:
                mine, theirs = f"{name}.{field}", f"{names[parent]}.{field}"
                if theirs in leaves and mine not in leaves:
                    found.setdefault(mine, leaves[theirs])
    return found


#: settings that had another name before the first release, by that name
RENAMED = {
    "federation.clients": "federation.sites",
    "real.rho": "image_training.ball",
    **{
        f"{method}.server_{name}": f"image_training.{name}"
        for method in ("feddm", "real")
        for name in ("lr", "momentum", "weight_decay", "batch", "epochs", "steps")
    },
}


def unknown_problems(leaves: Mapping[str, Leaf], own: Method | None = None) -> list[str]:
    """Say of every key that does not exist which one is nearest."""
    known = known_keys(own)
    problems = []
    for key, leaf in leaves.items():
        if key in known or (key.startswith(f"{STRATEGY}.") and key.count(".") == 1):
            continue
        if key in RUN_KEYS:
            problems.append(
                f"{key} {where_phrase(leaf.where)} can only be given by itself: {key}=..."
            )
            continue
        guess = RENAMED.get(key) or nearest_key(key, known)
        hint = f": did you mean {guess}?" if guess else ": `nectar config --help` lists all."
        problems.append(f"{key} {where_phrase(leaf.where)} is no setting{hint}")
    return problems


def wrong_value(key: str, leaf: Leaf, expected: str) -> str:
    """Say that a value is not of the permitted kind or range."""
    return f"{key}={show(leaf.value)} {where_phrase(leaf.where)} must be {expected}."


def build(section: str, cls: type[Settings], leaves: Mapping[str, Leaf]) -> Settings | list[str]:
    """Build a section from the values given for it.

    Parameters
    ----------
    section : str
        The section's name; empty for the run-wide keys.
    cls : type[Settings]
        Its class.
    leaves : mapping of str to Leaf
        Every value given, by dotted key; unknown keys are passed over.

    Returns
    -------
    Settings or list of str
        The section, or a sentence for each value that its class refuses.
    """
    prefix = f"{section}." if section else ""
    mine = {name: leaves[prefix + name] for name in cls.model_fields if prefix + name in leaves}
    values: dict[str, Any] = {name: leaf.value for name, leaf in mine.items()}
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        return [
            _problem(prefix, name, mine.get(name), cls, said)
            for name, said in _by_field(error).items()
        ]


_VALIDATORS = ("value_error", "assertion_error")
"""What pydantic calls an error that a class's own validator raised, rather than one of type or range."""


def _by_field(error: ValidationError) -> dict[str, str]:
    """Return of each field what its own validator says, or nothing; of several fields together under the empty name."""
    found: dict[str, str] = {}
    for detail in error.errors():
        name = str(detail["loc"][0]) if detail["loc"] else ""
        own = detail["type"] in _VALIDATORS or not name
        raised = detail.get("ctx", {}).get("error", detail["msg"])
        found.setdefault(name, " ".join(str(raised).split()).rstrip(".") if own else "")
    return found


def _problem(prefix: str, name: str, leaf: Leaf | None, cls: type[Settings], said: str) -> str:
    """Say what is wrong with one field, or with several that a class does not take together."""
    if name not in cls.model_fields:
        return f"{prefix.rstrip('.')}: {said}."
    expected = allowed(cls.model_fields[name]) + (f": {said}" if said else "")
    if leaf is None:
        return f"{prefix}{name} needs a value: {expected}."
    return wrong_value(prefix + name, leaf, expected)
