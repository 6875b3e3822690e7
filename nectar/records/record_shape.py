"""The schemas of a record's files; unknown keys are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from common.errors import FederationError


class Shape(BaseModel):
    """A JSON object of a record: strict types, extra keys allowed."""

    model_config = ConfigDict(strict=True, extra="allow")


class Figures(Shape):
    """What an evaluation found; a figure that was not finite is null."""

    accuracy: float | None = None
    loss: float | None = None
    per_class: list[float | None] | None = None
    f1: float | None = None
    balanced: float | None = None
    auc: float | None = None
    mean: float | None = None
    deviation: float | None = None
    worst: float | None = None
    over: str | None = None
    confusion: list[list[int]] | None = None

    @model_validator(mode="after")
    def _counts_class_by_class(self) -> Self:
        rows = self.confusion or []
        if {*map(len, rows)} - {len(rows)}:
            raise ValueError("confusion: needs as many columns as rows")
        return self


class SiteFigures(Shape):
    """What one site found on the images that it holds out."""

    examples: int
    accuracy: float
    loss: float
    f1: float | None = None
    balanced: float | None = None
    auc: float | None = None
    over: str | None = None


class Traffic(Shape):
    """Bytes each way by site."""

    up: dict[str, int] = {}
    down: dict[str, int] = {}


class Seconds(Shape):
    """Seconds by phase; by site as the sites say."""

    by_site: dict[str, float | None] | None = None


class Match(Shape):
    """Which site helped another, and with which classes."""

    helper: str
    classes: list[int]


class Released(Shape):
    """What a site's releases of a round cost."""

    epsilon: float | None
    delta: float
    seeded: bool


class Event(Shape):
    """A mechanism that a site was charged for."""

    mechanism: str


class Spent(Released):
    """What a site was charged in the run until then."""

    events: list[Event]


class Notes(Shape):
    """A method's notes on a round, as far as they are read."""

    matches: dict[str, Match] = {}
    privacy: dict[str, Released] = {}
    spent: dict[str, Spent] | None = None


class Line(Shape):
    """A round's line of metrics.jsonl."""

    round: int = Field(ge=0)
    test: Figures | None = None
    validation: Figures | None = None
    sites: Figures | None = None
    accepted: list[str] = []
    rejected: dict[str, str] = {}
    shortened: dict[str, float] = {}
    evaluated: dict[str, SiteFigures] = {}
    unevaluated: dict[str, str] | None = None
    train: dict[str, float | None] | None = None
    train_median: dict[str, float | None] = {}
    train_sites: dict[str, int] = {}
    bytes: Traffic = Traffic()
    seconds: Seconds = Seconds()
    notes: Notes | None = None


class SiteRow(Shape):
    """A site's images, by class where the server knew them."""

    examples: int = 0
    classes: list[int] | None = None


class Unlisted(Shape):
    """The sizes of sites that are not listed individually (None if they do not report them), and the reason."""

    sites: int
    examples: int | None
    least: int | None
    median: int | None
    most: int | None
    why: str


class Partition(Shape):
    """partition.json."""

    classes: list[str] = []
    sites: dict[str, SiteRow] = {}
    unlisted: Unlisted | None = None

    @model_validator(mode="after")
    def _counts_of_every_class(self) -> Self:
        counts = [row.classes for row in self.sites.values() if "classes" in row.model_fields_set]
        known = [row for row in counts if row is not None]
        if counts and (len(known) < len(self.sites) or {*map(len, known)} != {len(self.classes)}):
            raise ValueError("sites: each needs its number of images in every class")
        return self


class Found(Shape):
    """What an attack of an audit finds.

    Controls are weighted to the class counts of members, so that classes alone reveal nothing. An error is one standard
    error: binomial for shares, that of Hanley and McNeil (1982) for the area; for weighted controls with the number
    of equal ones that are worth as much (Kish).

    Parameters
    ----------
    area, area_error : float
        The probability that a member's score exceeds that of a control not used for fitting, ties counting half.
    found, found_error : float
        The share of all members above the threshold.
    false_alarms, false_alarms_error : float
        The share above it of the controls that were not used for fitting.
    members, controls : int
        The number of members, and of controls that were not used for fitting.
    """

    area: float
    area_error: float
    found: float
    found_error: float
    false_alarms: float
    false_alarms_error: float
    members: int
    controls: int = 0


class Nearest(Shape):
    """How near the images that a site sent come to real ones of their class, root of the mean squared difference.

    Parameters
    ----------
    own_median, other_median : float or None
        The median distance to the nearest image that the site trains on, and to the nearest control.
    nearer_to_own : float or None
        The share of the images that are nearer to the former, a tie counting half.
    nearer_by_chance : float or None
        What that share would be if both were drawn alike: the share of the site's own among both, on average.
    """

    own_median: float | None
    other_median: float | None
    nearer_to_own: float | None
    nearer_by_chance: float | None


class ExaminedSite(Shape):
    """What an audit found of one site, or of all: by attack, of which ``strongest`` finds the most members.

    ``nearest`` is None if it sent no images, and of all sites unless what they sent is known for all together only.
    """

    images: int
    strongest: str
    attacks: dict[str, Found]
    nearest: Nearest | None

    @model_validator(mode="after")
    def _strongest_is_one(self) -> Self:
        if self.attacks and self.strongest not in self.attacks:
            raise ValueError("strongest: not one of the attacks")
        return self


class Audit(Shape):
    """audit-images.json."""

    round: int
    rounds_not_kept: int = 0
    notes: list[str]
    controls: dict[str, int]
    everybody: ExaminedSite = Field(alias="all")
    sites: dict[str, ExaminedSite]


class Provenance(Shape):
    """provenance.json."""

    run_config: dict[str, str | int | float | bool] = Field(alias="run-config")
    command: list[Any] = []
    continued: list[Any] = []
    data: dict[str, Any] = {}
    outcome: str = "running"


def require(shape: type[Shape], content: Mapping[str, Any], path: Path, place: str = "") -> None:
    """Refuse ``content`` of the file ``path``, at ``place`` in it, unless it has ``shape``.

    Raises
    ------
    FederationError
        It names the first value that is otherwise, and what was expected.
    """
    try:
        shape.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = " ".join([*([place] if place else []), ".".join(map(str, first["loc"]))]).strip()
        message = first["msg"].removeprefix("Value error, ")
        raise FederationError(
            f"{path} is damaged or another release's ({where + ': ' if where else ''}{message}): restore it, or read "
            "the record with the release that wrote it"
        ) from None
