"""What a setting permits, in words: for the sentence of an error and for the help."""

from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from common.settings.section import Section, notes

_KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    NoneType: "null",
}


@dataclass(frozen=True)
class Description:
    """One setting as the help prints it."""

    name: str
    default: Any
    allowed: str
    meaning: str
    symbol: str
    source: str
    required: bool = False


def _bounds(field: FieldInfo) -> str:
    """Say the bounds of a number: ``"from 0 to 0.5"``, ``"above 0, at most 1"`` or nothing."""
    found = {
        name: getattr(part, name)
        for part in field.metadata
        for name in ("ge", "gt", "le", "lt")
        if getattr(part, name, None) is not None
    }
    if "ge" in found and "le" in found:
        return f"from {found['ge']} to {found['le']}"
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    return ", ".join(f"{words[name]} {found[name]}" for name in words if name in found)


def allowed(field: FieldInfo) -> str:
    """Say which values a field takes: ``"a whole number, at least 1"``."""
    if stated := notes(field).get("allowed"):
        return str(stated)
    kind = kind_words(field.annotation) + (" (on or off)" if field.annotation is bool else "")
    bounds = _bounds(field)
    return f"{kind}, {bounds}" if bounds else kind


def kind_words(kind: Any) -> str:
    """Say which values a type has: ``"a whole number"``, ``"one of a, b"``, ``"a text or null"``."""
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(kind_words, get_args(kind)))
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    return _KINDS.get(kind, str(kind))


def describe(settings: type[Section]) -> list[Description]:
    """Describe every setting of a class, in the order in which the class states them."""
    return [
        Description(
            name=name,
            default=field.default,
            allowed=allowed(field),
            meaning=field.description or "",
            symbol=str(notes(field).get("symbol", "")),
            source=str(notes(field).get("source", "")),
        )
        for name, field in settings.model_fields.items()
    ]


def amounts(settings: type[Section]) -> dict[str, str]:
    """Return what the settings of a class are amounts of at a site, by the setting's name."""
    fields = settings.model_fields.items()
    return {name: str(notes(field)["amount"]) for name, field in fields if "amount" in notes(field)}


def left_open(settings: type[Section], name: str) -> Any:
    """Return the value of an amount that leaves it to the server; None where every value is one of its own."""
    return notes(settings.model_fields[name]).get("open_at")
