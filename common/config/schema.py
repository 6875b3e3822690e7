"""Which keys exist, and the check of every value against the settings class of its section."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError

from common.code.imports import is_import_path
from common.config.keys import (
    COMMAND_LINE,
    RUN_KEYS,
    STRATEGY,
    TYPED_KEYS,
    Stated,
    fail,
    nearest_key,
    not_a_setting,
    show,
    unknown,
    where_phrase,
)
from common.config.user_parts import model_problems
from common.errors import ConfigError, nearest
from common.methods import FOREIGN_CLIENT, METHODS, Method, path_of, section, settings_of
from common.settings.base import Settings
from common.settings.section import Section, allowed
from common.settings.sections import SECTIONS, DistilSettings, ImageTrainingSettings, RunSettings

_RUN = ""
"""Stands for the section of the run's own keys."""


def section_class(name: str, own: Method | None = None) -> type[Section] | None:
    """Import a section's class; None if there is no such section. ``own`` is a user's own method, if chosen."""
    if own is not None and name == own.name:
        return settings_of(own)
    return settings_of(METHODS[name]) if name in METHODS else SECTIONS.get(name)


def section_classes(own: Method | None = None) -> dict[str, type[Section]]:
    """Import every section's class: the run-wide ones, then one for each method."""
    known = METHODS if own is None else {**METHODS, own.name: own}
    return SECTIONS | {name: settings_of(method) for name, method in known.items()}


def known_keys(own: Method | None = None) -> list[str]:
    """List every key of the configuration, dotted; the strategy's free arguments excepted."""
    dotted = [
        f"{section}.{name}"
        for section, cls in section_classes(own).items()
        for name in cls.model_fields
    ]
    return [*RunSettings.model_fields, *dotted]


@dataclass(frozen=True)
class Sections:
    """The settings that a run uses."""

    run: RunSettings
    shared: Mapping[str, Section]
    method: Settings
    inner: Mapping[str, Settings]
    leaves: Mapping[str, Stated]


def read_sections(given: Mapping[str, Stated], own: Method | None = None) -> Sections:
    """Build the sections that a run uses, and check what is given for any other.

    A section that is not in use and has no value is not even imported: a process of a run reads its own method's.
    """
    reading = _Reading(given, own)
    chosen = _chosen_section(given, own)
    inner = reading.use_method(chosen)
    reading.check_unused()
    problems = [*unknown_problems(given, own), *model_problems(given)]
    if told := problems + reading.refused() or reading.refused(taken=True):
        fail(told)
    built = reading.sections
    run = cast(RunSettings, built[_RUN])
    if chosen not in METHODS and own is None:
        others = ", and any Flower strategy or method of your own as package.module:NAME"
        raise unknown("method", run.method, given["method"].where, list(METHODS), others)
    inner_settings = {name: cast(Settings, built[name]) for name in inner}
    method = cast(Settings, built[chosen])
    if not any(each.trains_on_images for each in (method, *inner_settings.values())):
        # What a data set's file says of it is nothing to a method that does not train so.
        built["image_training"] = ImageTrainingSettings()
    if not any(each.distils for each in (method, *inner_settings.values())):
        built["distil"] = DistilSettings()
    shared = {name: built[name] for name in SECTIONS}
    return Sections(run, shared, method, inner_settings, reading.leaves)


def _chosen_section(given: Mapping[str, Stated], own: Method | None) -> str:
    """Return the section of the method that is chosen, which is FedAvg's for a Flower strategy."""
    method = str(given["method"].value) if "method" in given else RunSettings().method
    if own is not None:
        return own.name
    return FOREIGN_CLIENT if is_import_path(method) else method


class _Reading:
    """Sections as they are built, one after another, and what their classes refuse."""

    def __init__(self, given: Mapping[str, Stated], own: Method | None) -> None:
        self.given, self.own = given, own
        self.leaves = dict(given)
        self.sections: dict[str, Section] = {}
        self._problems: dict[str, list[str]] = {}
        self._build(_RUN, RunSettings, given)
        for name, cls in SECTIONS.items():
            self._build(name, cls, given)

    def use_method(self, chosen: str) -> list[str]:
        """Build the section of a method and of those inside it, and return these' names."""
        inner: list[str] = []
        open_ends = [chosen]
        while open_ends:
            name = open_ends.pop()
            cls = section_class(name, self.own)
            if cls is None:
                continue
            self.leaves = _taken_over(name, cls, self.given, self.own) | self.leaves
            self._build(name, cls, self.leaves)
            settings = self.sections.get(name)
            used = settings.uses() if isinstance(settings, Settings) else ()
            fresh = [each for each in map(section, used) if each not in (chosen, *inner)]
            inner += fresh
            open_ends += fresh
        return inner

    def check_unused(self) -> None:
        """Build the sections of methods that are not in use but have values; what they take over is nothing to them."""
        for name in {key.partition(".")[0] for key in self.given if "." in key}:
            cls = section_class(name, self.own)
            if cls is None or name in self.sections or name in self._problems:
                continue
            self._build(name, cls, _taken_over(name, cls, self.given, self.own) | dict(self.given))
            if name in self._problems:
                self._build(name, cls, self.given)

    def _build(self, name: str, cls: type[Section], leaves: Mapping[str, Stated]) -> None:
        self._problems.pop(name, None)
        built = build(name, cls, leaves)
        if isinstance(built, Settings):
            built = _unknown_inner(name, built, leaves) or built
        if isinstance(built, Section):
            self.sections[name] = built
        else:
            self._problems[name] = built

    def refused(self, *, taken: bool = False) -> list[str]:
        """Return what is wrong with values given; with ``taken``, with those only taken over, wrong where given."""
        names = (_RUN, *SECTIONS, *METHODS, *([self.own.name] if self.own else []))
        message = [sentence for name in names for sentence in self._problems.get(name, ())]
        over = self.leaves.keys() - self.given.keys()
        return [sentence for sentence in message if (sentence.partition("=")[0] in over) is taken]


def _unknown_inner(name: str, settings: Settings, leaves: Mapping[str, Stated]) -> list[str]:
    """Say of each method that this one uses and there is not, or that is this one itself, which one it may be."""
    known = [other for other in METHODS if other != name]
    problems = []
    for used in settings.uses():
        if used not in known:
            guess = nearest(used, known)
            message = f"it is one of {', '.join(known)}" + (f", such as {guess}" if guess else "")
            field = next((field for field, value in settings if value == used), "")
            leaf = leaves.get(f"{name}.{field}")
            problems.append(_problem(f"{name}.", field, leaf, type(settings), message))
    return problems


def _taken_over(
    name: str, cls: type[Section], given: Mapping[str, Stated], own: Method | None
) -> dict[str, Stated]:
    """Return what a method takes over from those whose settings classes its own inherits, by its own dotted keys.

    What a file says of FedAvg's local training thus holds for every method that trains as FedAvg does, unless it is
    given a value of its own: a variant is compared at equal settings, not with its class's defaults.
    """
    known = (*METHODS.values(), *([own] if own else []))
    names = {method.settings: method.name for method in known}
    found: dict[str, Stated] = {}
    for parent in cls.__mro__[1:]:
        theirs = names.get(path_of(parent))
        for field in parent.model_fields if theirs and issubclass(parent, Settings) else ():
            mine = f"{name}.{field}"
            if f"{theirs}.{field}" in given and mine not in given:
                found.setdefault(mine, given[f"{theirs}.{field}"])
    return found


GONE = {"wire.compression": "none", "data.bins": 0, "data.edges": "", "fedsynth.replay": "loop"}
"""What settings were in release 0.2 that there are no more, in a record that goes on as it would without them."""


def unknown_problems(leaves: Mapping[str, Stated], own: Method | None = None) -> list[str]:
    """Say of every key that does not exist which one is nearest."""
    problems = []
    for key, leaf in leaves.items():
        if _is_known(key, own) or GONE.get(key) == leaf.value:
            continue
        if key in RUN_KEYS:
            problems.append(
                f"{key} {where_phrase(leaf.where)} can only be given by itself: {key}=..."
            )
            continue
        method, known = _chosen_section(leaves, own), known_keys(own)
        guess = nearest_key(key, known, method)
        problems.append(not_a_setting(key, leaf.where, guess, method))
    return problems


def refuse_unknown_keys(
    keys: Iterable[str], leaves: Mapping[str, Stated], own: Method | None = None
) -> None:
    """Refuse a key without a section that is not the run config's; ConfigError."""
    for key in (key for key in keys if key not in RUN_KEYS):
        known = known_keys(own)
        if inside := [other for other in known if other.startswith(f"{key}.")]:
            raise ConfigError(
                f"{key} {where_phrase(COMMAND_LINE)} is a section of settings: write one of them, such as {inside[0]}."
            )
        method = _chosen_section(leaves, own)
        guess = nearest_key(key, [*TYPED_KEYS, *known], method)
        raise ConfigError(not_a_setting(key, COMMAND_LINE, guess, method))


def _is_known(key: str, own: Method | None) -> bool:
    name, dot, field = key.partition(".")
    if not dot:
        return key in RunSettings.model_fields
    if name == STRATEGY:
        return "." not in field
    cls = section_class(name, own)
    return cls is not None and field in cls.model_fields


def build(section: str, cls: type[Section], leaves: Mapping[str, Stated]) -> Section | list[str]:
    """Build a section from the values given for it."""
    prefix = f"{section}." if section else ""
    mine = {name: leaves[prefix + name] for name in cls.model_fields if prefix + name in leaves}
    values: dict[str, Any] = {name: leaf.value for name, leaf in mine.items()}
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        return [
            _problem(prefix, name, mine.get(name), cls, message)
            for name, message in _by_field(error).items()
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


def _problem(prefix: str, name: str, leaf: Stated | None, cls: type[Section], said: str) -> str:
    """Describe what is wrong with one field, or with several that a class does not take together."""
    if name not in cls.model_fields:
        return f"{prefix.rstrip('.')}: {said}."
    expected = allowed(cls.model_fields[name]) + (f": {said}" if said else "")
    if leaf is None:
        return f"{prefix}{name} needs a value: {expected}."
    return f"{prefix}{name}={show(leaf.value)} {where_phrase(leaf.where)} must be {expected}."
