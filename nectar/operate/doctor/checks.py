"""The subjects of `nectar doctor` and the results of its checks: a level and a sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from common.config.resolved import Config

Level = Literal["ok", "warn", "fail"]
"""``warn``: it works, but should be changed or was not checked; ``fail``: a run would fail."""


class Check(NamedTuple):
    """The result of a check: its subject, its level, and a text that explains how to fix a problem."""

    about: str
    level: Level
    text: str


@dataclass(frozen=True)
class DoctorTarget:
    """What to check.

    Attributes
    ----------
    config : Config
        The run to come; at a site, as the site carries it out.
    run_config : mapping
        The same settings as submitted.
    server : str or None
        The connection, by name or address.
    node : mapping
        The site's node config.
    named : bool
        Whether the run to come names its data set.
    """

    config: Config
    run_config: Mapping[str, str | int | float | bool]
    server: str | None = None
    site: bool = False
    keys: Path | None = None
    data: Path | None = None
    state: Path | None = None
    ca: str | None = None
    insecure: bool = False
    node: Mapping[str, Any] = field(default_factory=dict)
    named: bool = True


Found = Iterator[tuple[Level, str]]
"""What a check yields; a NectarError that it raises counts as a failure."""


def show(checks: Iterator[Check]) -> bool:
    """Print checks as they complete; return whether none failed."""
    well = True
    for check in checks:
        print(f"{check.level:<4}  {check.about:<12}  {check.text}", flush=True)
        well = well and check.level != "fail"
    return well
