"""What every section of settings is, and how a setting states its default, range, meaning and symbol."""

from __future__ import annotations

from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

AMOUNTS = ("iterations", "epochs", "ipc", "images", "size", "cores")
"""What a site's owner can bound of any method: settings say by ``amount`` which of them they are."""

_SWITCH = {"on": True, "off": False}


def _read_switch(value: Any) -> Any:
    """Read the words ``on`` and ``off``; anything else goes to the strict check for a boolean."""
    return _SWITCH.get(value, value) if isinstance(value, str) else value


Switch = Annotated[bool, BeforeValidator(_read_switch)]
"""A yes-or-no setting: ``true`` and ``false``, or the words ``on`` and ``off``."""

LEAST_NOISE, MOST_NOISE = 1e-2, 1e4
"""The noise multipliers allowed besides 0: less does not protect, more is a slip; both are hard to account for."""

LEAST_CLIP, MOST_CLIP = 1e-6, 1e6
"""The allowed longest contributions: a length outside is beyond float32."""


def _zero_or(least: float, most: float, why: str) -> AfterValidator:
    """Return a validator that refuses numbers that are neither 0 nor between these."""

    def check(value: float) -> float:
        if value and not least <= value <= most:
            raise ValueError(why)
        return value

    return AfterValidator(check)


Noise = Annotated[
    float,
    _zero_or(LEAST_NOISE, MOST_NOISE, "less noise does not protect, and more leaves nothing"),
]
"""A setting that noise is as large as: a multiple of what it covers."""

Clip = Annotated[float, _zero_or(LEAST_CLIP, MOST_CLIP, "a length outside is beyond float32")]
"""A setting that is a longest contribution, or 0 for none."""


class Section(BaseModel):
    """A section of the configuration.

    Frozen, closed to unknown keys and strict: ``"two"`` is no integer, ``true`` is no float. An
    integer is accepted where a float is meant; NaN and infinity nowhere.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False
    )


def setting(
    default: Any,
    meaning: str,
    *,
    symbol: str | None = None,
    source: str | None = None,
    allowed: str | None = None,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    pattern: str | None = None,
    operational: bool = False,
    amount: str | None = None,
    open_at: int | None = None,
    later: bool = False,
    only: str | None = None,
) -> Any:
    """Declare a field of a :class:`Section`.

    Parameters
    ----------
    default : Any
        The default; for a paper's setting, the paper's value.
    meaning : str
        What it does, as ``nectar config --help`` prints it.
    symbol : str, optional
        The paper's symbol.
    source : str, optional
        Where the default comes from when it is not the method's own paper.
    allowed : str, optional
        The permitted values in words, where bounds and literals do not say it.
    ge, gt, le, lt : float, optional
        Bounds, as in pydantic.
    pattern : str, optional
        A regular expression that a text must match; state it in ``allowed`` as well.
    operational : bool
        True if it changes how a run proceeds, never its numbers: no part of a run's identity.
    amount : str, optional
        What it is an amount of at a site, one of ``AMOUNTS``: the site's own ``max-<amount>`` bounds it.
    open_at : int, optional
        The value of an amount that leaves it to the server, which no bound of a site's allows.
    later : bool
        True if it came after the first records: at its default it is no part of what names a site's memory.
    only : str, optional
        The only kind of data that it applies to, by a word of ``common.config.consistency.ONLY``; else refused.
    """
    if amount is not None and amount not in AMOUNTS:
        raise ValueError(f"amount={amount!r} is not one of {', '.join(AMOUNTS)}")
    notes = {
        "symbol": symbol,
        "source": source,
        "allowed": allowed,
        "operational": operational or None,
        "amount": amount,
        "open_at": open_at,
        "later": later or None,
        "only": only,
    }
    return Field(
        default,
        description=meaning,
        ge=ge,
        gt=gt,
        le=le,
        lt=lt,
        pattern=pattern,
        json_schema_extra={key: value for key, value in notes.items() if value is not None},
    )


of_noise = partial(setting, 0.0, allowed="0, or a number from 0.01 to 10000")
"""Declares a `Noise`, of nothing unless it is chosen."""

of_clip = partial(
    setting, 1.0, symbol="C", allowed="a number from 1e-6 to 1e6", ge=LEAST_CLIP, le=MOST_CLIP
)
"""Declares a longest contribution that is never 0."""


def notes(field: FieldInfo) -> dict[str, Any]:
    """Return the notes of :func:`setting` on a field."""
    extra = field.json_schema_extra
    return dict(extra) if isinstance(extra, dict) else {}


def operational(settings: type[Section]) -> frozenset[str]:
    """Name the settings of a class that change no number of a run."""
    fields = settings.model_fields.items()
    return frozenset(name for name, field in fields if notes(field).get("operational"))


# ---- allowed -------------------------------------------------------------------------------------
# What a setting permits, in words: for the sentence of an error and for the help.

_KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    NoneType: "null",
}


def allowed(field: FieldInfo) -> str:
    """Describe which values a field takes: ``"a whole number, at least 1"``."""
    if stated := notes(field).get("allowed"):
        return str(stated)
    kind = kind_words(field.annotation) + (" (on or off)" if field.annotation is bool else "")
    bounds = _bounds(field)
    return f"{kind}, {bounds}" if bounds else kind


def _bounds(field: FieldInfo) -> str:
    """Describe the bounds of a number: ``"from 0 to 0.5"``, ``"above 0, at most 1"`` or nothing."""
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


def kind_words(kind: Any) -> str:
    """Describe which values a type has: ``"a whole number"``, ``"one of a, b"``, ``"a text or null"``."""
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(kind_words, get_args(kind)))
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    return _KINDS.get(kind, str(kind))


def amounts(settings: type[Section]) -> dict[str, str]:
    """Return the kind of amount at a site of each setting of a class, by the setting's name."""
    fields = settings.model_fields.items()
    return {name: str(notes(field)["amount"]) for name, field in fields if "amount" in notes(field)}


def left_open(settings: type[Section], name: str) -> Any:
    """Return the value of an amount that leaves it to the server; None if every value is chosen explicitly."""
    return notes(settings.model_fields[name]).get("open_at")


def without_later(settings: Section) -> dict[str, Any]:
    """Return the settings that change numbers, without those at their default that came after the first records."""
    fields = type(settings).model_fields.items()
    later = {n for n, f in fields if notes(f).get("later") and getattr(settings, n) == f.default}
    return settings.model_dump(exclude={*operational(type(settings)), *later})
