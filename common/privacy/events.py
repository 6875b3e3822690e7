"""What has been released of private data: events, which the ledger composes.

**Adjacency.** Two data sets are neighbours if one has an example more (``add-remove``), or if one example was
exchanged for another (``replace-one``). Labels, class counts and a mean's divisor m are public: what an absent example
leaves behind is the label and the place, no more. Every event says under which of the two its noise was computed.

*From replace-one to add-remove.* Where m is public, a mechanism on m places is one on fewer examples too: an absent
one's place holds a fixed example y that has nothing to do with the data. Then adding x exchanges y for x, so that
add-remove neighbours are replace-one neighbours of what the mechanism sees, and one event at the same noise multiplier
would do. The ledger counts two, of which the second is margin: its epsilon for a Gaussian is that of sqrt(2) times the
sensitivity.

*From add-remove to replace-one.* An exchange removes one example and adds another, at a distance of two. A Gaussian's
sensitivity is then 2 D at most (the triangle inequality; reached by x and -x of length D), so that its noise multiplier
is half, and rho four times as large. Two events would be too few: they make up for sqrt(2) D. For a Poisson sample no
such exact form is known to Opacus' accountants, and none is given here.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

Adjacency = Literal["add-remove", "replace-one"]

#: the longest name of a mechanism, which is stored in files
_LONGEST = 80


UNIT = "example"
"""Whose privacy an epsilon is: one example's."""


@dataclass(frozen=True)
class Event:
    """Gaussian noise on a sum over examples, of all of them or of Poisson samples, once or several times.

    Parameters
    ----------
    mechanism : str
        What was released, such as ``dp-sgd``; printable, 1 to 80 characters.
    noise_multiplier : float
        The noise's standard deviation over the statistic's L2 sensitivity under ``adjacency``; 0: no noise.
    sample_rate : float
        The probability with which each example is in a step's sample, by itself (Poisson sampling); 1: all are in each.
    steps : int
        How often, each time with a fresh sample and fresh noise.
    adjacency : str
        Which data sets are neighbours: ``add-remove`` or ``replace-one``.
    """

    mechanism: str
    noise_multiplier: float
    sample_rate: float = 1.0
    steps: int = 1
    adjacency: Adjacency = "add-remove"

    def __post_init__(self) -> None:
        if not (1 <= len(self.mechanism) <= _LONGEST and self.mechanism.isprintable()):
            raise ValueError(
                f"the mechanism is called {self.mechanism[:_LONGEST]!r}: give 1 to {_LONGEST} printable characters"
            )
        if not self.noise_multiplier >= 0 or type(self.steps) is not int or self.steps < 0:
            raise ValueError(
                f"{self.steps} steps with noise of {self.noise_multiplier} times the sensitivity: give numbers from "
                "0, of steps an integer"
            )
        if not 0 <= self.sample_rate <= 1:
            raise ValueError(f"a sample rate of {self.sample_rate}: give a number from 0 to 1")
        if self.adjacency not in get_args(Adjacency):
            raise ValueError(
                f"neighbours by {self.adjacency!r}: choose {' or '.join(get_args(Adjacency))}"
            )

    @property
    def releases(self) -> bool:
        """Whether anything depends on the data: there are steps, samples that are not empty, and finite noise."""
        return self.steps > 0 and self.sample_rate > 0 and self.noise_multiplier < math.inf

    @property
    def rho(self) -> float:
        """The cost in zero-concentrated differential privacy without sampling: steps / (2 multiplier^2)."""
        if not self.steps:
            return 0.0
        inverse = 1 / self.noise_multiplier if self.noise_multiplier else math.inf
        return self.steps * inverse * inverse / 2

    def converted_to(self, adjacency: Adjacency) -> Event:
        """Return an event of the other adjacency that costs no less, by the rules of the module; else ValueError."""
        if adjacency == self.adjacency:
            return self
        if adjacency == "add-remove":
            return replace(self, steps=2 * self.steps, adjacency=adjacency)
        if self.sample_rate not in (0.0, 1.0):
            raise ValueError(
                f"{self.mechanism} draws Poisson samples, whose cost for one example exchanged for another is not "
                "accounted for: ask for add-remove"
            )
        return replace(self, noise_multiplier=self.noise_multiplier / 2, adjacency=adjacency)

    def to_dict(self) -> dict[str, Any]:
        """Return the event as plain data for JSON."""
        return asdict(self)

    @classmethod
    def read(cls, recorded: object) -> Event:
        """Return what ``to_dict`` gave; ValueError if it is not one."""
        if not isinstance(recorded, Mapping) or set(recorded) != {f.name for f in fields(cls)}:
            raise ValueError(
                f"{str(recorded)[:80]} is not an event: it lacks a field, or has another"
            )
        numbers = (recorded["noise_multiplier"], recorded["sample_rate"])
        if not isinstance(recorded["mechanism"], str) or not all(map(_is_number, numbers)):
            raise ValueError(f"{str(recorded)[:80]} is not an event: a field is of another kind")
        return cls(**recorded)


def _is_number(value: object) -> bool:
    """Return whether it is a number that a float can hold: JSON's integers are unbounded."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) <= sys.float_info.max


def parallel(classes: Iterable[Event]) -> Event:
    """Return the event of mechanisms on disjoint parts of the data together, such as classes: the worst.

    An example is in one part, and what is released of the others is the same with it and without it. (That holds of
    an exchange only within a part.) What is returned is the least noise, the highest rate and the most steps that any
    part's event has: where they differ in one of these alone, exactly the worst, else no less.
    """
    events = list(classes)
    if len({(event.mechanism, event.adjacency) for event in events}) != 1:
        raise ValueError(
            f"{len(events)} events side by side: give one or more, of one mechanism and one adjacency"
        )
    return replace(
        events[0],
        noise_multiplier=min(event.noise_multiplier for event in events),
        sample_rate=max(event.sample_rate for event in events),
        steps=max(event.steps for event in events),
    )
