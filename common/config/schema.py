"""Which keys exist, and the check of every value against the settings class of its section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from common.code.imports import is_import_path
from common.config.keys import (
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
from common.errors import nearest
from common.methods import FOREIGN_CLIENT, METHODS, Method, path_of, section, settings_of
from common.settings.base import Settings
from common.settings.section import Section, allowed
from common.settings.sections import (
    SECTIONS,
    DistilSettings,
    ImageTrainingSettings,
    RunSettings,
    SharedSections,
)

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
    """The settings that a run uses, and what was said of them: given for a section, or taken over by its method."""

    run: RunSettings
    shared: SharedSections
    method: Settings
    inner: Mapping[str, Settings]
    leaves: Mapping[str, Stated]


_Refused = tuple[str, str]
"""The key of a value, which is empty of several together, and what is wrong with it."""


def read_sections(given: Mapping[str, Stated], own: Method | None = None) -> Sections:
    """Build the sections that a run uses, and check what is given for any other: one ConfigError lists all problems.

    A section that is not in use and has no value is not even imported: a process of a run reads its own method's.
    """
    refused: dict[str, list[_Refused]] = {}

    def build(name: str, cls: type[Section], leaves: Mapping[str, Stated]) -> Any:
        built, refused[name] = _build(name, cls, leaves)
        return built

    run = build(_RUN, RunSettings, given)
    shared = {name: build(name, cls, given) for name, cls in SECTIONS.items()}
    chosen = _chosen_section(given, own)
    leaves, methods, ahead = dict(given), dict[str, Settings](), [chosen]
    while ahead:
        name = ahead.pop(0)
        cls = section_class(name, own)
        if cls is None or name in refused:
            continue
        leaves = _taken_over(name, cls, given, own) | leaves
        if (settings := build(name, cls, leaves)) is not None:
            methods[name] = settings
            ahead += map(section, settings.uses())
    for name in dict.fromkeys(key.partition(".")[0] for key in given if "." in key):
        cls = section_class(name, own)
        if cls is not None and name not in refused:
            # of a method that is not in use; what it takes over is nothing to it
            over = _taken_over(name, cls, given, own)
            build(name, cls, over | dict(given)) or build(name, cls, given)
    order = (_RUN, *SECTIONS, *METHODS, *([own.name] if own else []))
    wrong = [each for name in order for each in refused.get(name, ())]
    # an error in a value that was only taken over is explained by the error where it was given, if there
    own_words = [said for key, said in wrong if key in given or key not in leaves]
    problems = [*_unknown_keys(given, own), *model_problems(given), *own_words]
    if reported := problems or [said for _, said in wrong]:
        fail(reported)
    if chosen not in methods:
        others = ", and any Flower strategy or your own method as package.module:NAME"
        raise unknown("method", run.method, given["method"].where, list(METHODS), others)
    used = SharedSections(**shared)
    if not any(each.trains_on_images for each in methods.values()):
        # What a data set's file says of it is nothing to a method that does not train so.
        used = replace(used, image_training=ImageTrainingSettings())
    if not any(each.distils for each in methods.values()):
        used = replace(used, distil=DistilSettings())
    method = methods.pop(chosen)
    return Sections(run, used, method, methods, leaves)


def _chosen_section(given: Mapping[str, Stated], own: Method | None) -> str:
    """Return the section of the method that is chosen, which is FedAvg's for a Flower strategy."""
    method = str(given["method"].value) if "method" in given else RunSettings().method
    if own is not None:
        return own.name
    return FOREIGN_CLIENT if is_import_path(method) else method


def _taken_over(
    name: str, cls: type[Section], given: Mapping[str, Stated], own: Method | None
) -> dict[str, Stated]:
    """Return the settings that a method inherits from the methods of its base classes, by its own dotted keys.

    What a file says of FedAvg's local training thus holds for every method that trains as FedAvg does, unless it is
    given a separate value: a variant is compared at equal settings, not with its class's defaults.
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


# ---- unknown keys -------------------------------------------------------------------------------

GONE = {
    "wire.compression": "none",
    "data.bins": 0,
    "data.edges": "",
    "fedsynth.replay": "loop",
    "feddgm.generator_sha256": "",
    "feddgm.stylegan": "",
    "feddgm.stylegan_code": "",
    "feddgm.unpickle": False,
    "feddgm.stylegan_classes": "",
    "feddgm.stylegan_ops": "reference",
}
"""Settings of release 0.2 that are gone, with the values at which a record resumes as if they were not set."""


def _unknown_keys(given: Mapping[str, Stated], own: Method | None) -> Iterator[str]:
    """Describe every unknown key, with the nearest known one."""
    for key, leaf in given.items():
        if _is_known(key, own) or GONE.get(key) == leaf.value:
            continue
        method, known, where = (
            _chosen_section(given, own),
            known_keys(own),
            where_phrase(leaf.where),
        )
        if key in RUN_KEYS:
            yield f"{key} {where} can only be given by itself: {key}=..."
        elif inside := [other for other in known if other.startswith(f"{key}.")]:
            yield f"{key} {where} is a section of settings: write one of them, such as {inside[0]}."
        else:
            guess = nearest_key(key, [*TYPED_KEYS, *known], method)
            yield not_a_setting(key, leaf.where, guess, method)


def _is_known(key: str, own: Method | None) -> bool:
    name, dot, field = key.partition(".")
    if not dot:
        return key in RunSettings.model_fields
    if name == STRATEGY:
        return "." not in field
    cls = section_class(name, own)
    return cls is not None and field in cls.model_fields


# ---- values that a section's class refuses -------------------------------------------------------


def _build(
    section: str, cls: type[Section], leaves: Mapping[str, Stated]
) -> tuple[Section | None, list[_Refused]]:
    """Build a section from the values given for it; None with what is wrong with these."""
    prefix = f"{section}." if section else ""
    mine = {name: leaves[prefix + name] for name in cls.model_fields if prefix + name in leaves}
    built = None
    try:
        built = cls.model_validate({name: leaf.value for name, leaf in mine.items()})
        why = _unknown_inside(section, built)
    except ValidationError as error:
        why = _by_field(error)
    refused = [
        (prefix + name, _in_words(prefix, name, mine.get(name), cls, said))
        for name, said in why.items()
    ]
    return None if refused else built, refused


def _unknown_inside(name: str, settings: Section) -> dict[str, str]:
    """Describe each inner method that is unknown, or is this method itself, with the names that are possible."""
    known, problems = [other for other in METHODS if other != name], {}
    for used in settings.uses() if isinstance(settings, Settings) else ():
        if used not in known:
            guess = nearest(used, known)
            field = next((field for field, value in settings if value == used), "")
            such = f", such as {guess}" if guess else ""
            problems[field] = f"it is one of {', '.join(known)}{such}"
    return problems


_VALIDATORS = ("value_error", "assertion_error")
"""What pydantic calls an error that a class's own validator raised, rather than one of type or range."""


def _by_field(error: ValidationError) -> dict[str, str]:
    """Return each field's errors of its own validator; those of several fields together are under the empty name."""
    found: dict[str, str] = {}
    for detail in error.errors():
        name = str(detail["loc"][0]) if detail["loc"] else ""
        own = detail["type"] in _VALIDATORS or not name
        raised = detail.get("ctx", {}).get("error", detail["msg"])
        found.setdefault(name, " ".join(str(raised).split()).rstrip(".") if own else "")
    return found


def _in_words(prefix: str, name: str, leaf: Stated | None, cls: type[Section], said: str) -> str:
    """Describe what is wrong with one field, or with several that a class does not take together."""
    if name not in cls.model_fields:
        return f"{prefix.rstrip('.')}: {said}."
    expected = allowed(cls.model_fields[name]) + (f": {said}" if said else "")
    if leaf is None:
        return f"{prefix}{name} needs a value: {expected}."
    return f"{prefix}{name}={show(leaf.value)} {where_phrase(leaf.where)} must be {expected}."
