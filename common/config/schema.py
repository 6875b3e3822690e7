"""Which keys exist, and the check of every value against the settings class of its section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from common.config.keys import RUN_KEYS, STRATEGY, Leaf
from common.config.problems import nearest_key, show, where_phrase
from common.methods import METHODS, settings_class
from common.settings.base import Settings
from common.settings.describe import allowed
from common.settings.sections import SECTIONS, RunSettings


def section_classes() -> dict[str, type[Settings]]:
    """Return every section with its class: the run-wide ones, then one for each method."""
    return SECTIONS | {name: settings_class(name) for name in METHODS}


def known_keys() -> list[str]:
    """List every key of the configuration, dotted; the strategy's free arguments excepted."""
    dotted = [
        f"{section}.{name}"
        for section, cls in section_classes().items()
        for name in cls.model_fields
    ]
    return [*RunSettings.model_fields, *dotted]


def taken_over(leaves: Mapping[str, Leaf]) -> dict[str, Leaf]:
    """Return what methods take over from the method whose settings class theirs inherits, by their own dotted keys.

    What a file says of FedAvg's local training thus holds for every method that trains as FedAvg does, unless it is
    given a value of its own: a variant is compared at equal settings, not with its class's defaults.
    """
    classes = {name: settings_class(name) for name in METHODS}
    names = {cls: name for name, cls in classes.items()}
    found: dict[str, Leaf] = {}
    for name, cls in classes.items():
        for parent in (base for base in cls.__mro__[1:] if base in names):
            for field in parent.model_fields:
                own, theirs = f"{name}.{field}", f"{names[parent]}.{field}"
                if theirs in leaves and own not in leaves:
                    found.setdefault(own, leaves[theirs])
    return found


def unknown_problems(leaves: Mapping[str, Leaf]) -> list[str]:
    """Say of every key that does not exist which one is nearest."""
    known = known_keys()
    problems = []
    for key, leaf in leaves.items():
        if key in known or (key.startswith(f"{STRATEGY}.") and key.count(".") == 1):
            continue
        if key in RUN_KEYS:
            problems.append(
                f"{key} {where_phrase(leaf.where)} can only be given by itself: {key}=..."
            )
            continue
        guess = nearest_key(key, known)
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
        wrong = dict.fromkeys(str(detail["loc"][0]) for detail in error.errors())
        return [
            wrong_value(prefix + name, mine[name], allowed(cls.model_fields[name]))
            for name in wrong
        ]
