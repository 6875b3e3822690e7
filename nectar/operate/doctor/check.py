"""A check's outcome, as one line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """What one look found.

    Attributes
    ----------
    about : str
        What was looked at, in a word or two.
    level : str
        ``ok``; ``warn``: it works, but should be otherwise or was not looked at; ``fail``: a run would fail by it.
    text : str
        What was found and, unless all is well, how it is mended.
    """

    about: str
    level: Level
    text: str


def shown(checks: Iterable[Check]) -> bool:
    """Print checks as they are made; tell whether none failed."""
    well = True
    for check in checks:
        print(f"{check.level:<4}  {check.about:<12}  {check.text}", flush=True)
        well = well and check.level != "fail"
    return well
