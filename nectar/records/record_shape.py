"""What the files of a run's record must look like for those who read them; more in them does no harm."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from common.errors import FederationError


class Shape(BaseModel):
    """A table of a record: types as they stand, keys that nobody here reads as they like."""

    model_config = ConfigDict(strict=True, extra="allow")


class Figures(Shape):
    """What an evaluation found; a figure that was not finite is null."""

    accuracy: float | None = None
    loss: float | None = None
    per_class: list[float | None] | None = None


class SiteFigures(Shape):
    """What one site found on the images that it holds out."""

    examples: int
    accuracy: float
    loss: float


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
    """What a method says of a round, as far as it is read."""

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
    bytes: Traffic = Traffic()
    seconds: Seconds = Seconds()
    notes: Notes | None = None


class SiteRow(Shape):
    """A site's images, by class where the server knew them."""

    examples: int = 0
    classes: list[int] | None = None


class Unlisted(Shape):
    """The sizes of sites that are not listed one by one, None if these tell none, and why."""

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
            raise ValueError("sites: each one needs the number of its images in every class")
        return self


class AttackFigures(Shape):
    """What an attack of an audit found."""

    area: float
    area_error: float
    found: float
    found_error: float
    false_alarms: float
    false_alarms_error: float
    members: int


class NearestFigures(Shape):
    """How near a site's images lie to its own and to controls."""

    own_median: float | None
    other_median: float | None
    nearer_to_own: float | None
    nearer_by_chance: float | None


class ExaminedSite(Shape):
    """What an audit found of one site, or of all."""

    images: int
    strongest: str
    attacks: dict[str, AttackFigures]
    nearest: NearestFigures | None

    @model_validator(mode="after")
    def _strongest_is_one(self) -> Self:
        if self.attacks and self.strongest not in self.attacks:
            raise ValueError("strongest: it is none of the attacks")
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
