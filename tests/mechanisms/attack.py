"""An attacker who knows everything but whether one example is there, and sees one release at fixed weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from common.privacy.accounting import epsilon
from common.privacy.events import Adjacency, Event
from tests.mechanisms.bound import Bound, lower_bound

STATISTICS = ("itself", "less a neighbour's", "less an earlier one", "its spread")
"""What of a release the attacker looks at.

Its place along the canary; that less the place of a class beside it; that less the place of a release of before; and
how far all the rest of it spreads.
"""


class Releases(Protocol):
    """A mechanism's own code, at fixed weights, called many times at once."""

    @property
    def event(self) -> Event:
        """What the ledger is told of one release."""

    @property
    def claimed(self) -> Adjacency:
        """Which data sets are neighbours in what is claimed."""

    def expected(self, *, canary: bool) -> Tensor:
        """Return what is released without noise, [d]: the canary's direction is where the two of these lie apart."""

    def drawn(self, *, canary: bool) -> tuple[Tensor, Tensor]:
        """Return some releases and, made in the same call, as many of data without the canary, [n, d] each."""


@dataclass(frozen=True)
class Audit:
    """What one mechanism claims, and what an attacker shows."""

    name: str
    event: Event
    delta: float
    claim: float
    bound: Bound
    repeats: int
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether nothing beyond the claim was shown."""
        return self.bound.epsilon <= self.claim


def audit(
    name: str,
    releases: Releases,
    *,
    delta: float,
    repeats: int,
    confidence: float = 0.95,
    before_block: Callable[[], None] | None = None,
) -> Audit:
    """Attack ``repeats`` releases with the canary and as many without it.

    Parameters
    ----------
    repeats : int
        Releases on either side: half of them choose the attacker's test, the other half are counted.
    before_block : callable, optional
        Called ahead of each block of releases.
    """
    started = time.perf_counter()
    centre = releases.expected(canary=False)
    along = releases.expected(canary=True) - centre
    along = along / along.norm().clamp_min(torch.finfo(along.dtype).tiny)
    with_it, without = _seen(releases, centre, along, repeats, before_block)
    return Audit(
        name=name,
        event=releases.event,
        delta=delta,
        claim=epsilon([releases.event], delta, releases.claimed).value,
        bound=lower_bound(with_it, without, delta, confidence),
        repeats=repeats,
        seconds=time.perf_counter() - started,
    )


def _seen(
    releases: Releases,
    centre: Tensor,
    along: Tensor,
    repeats: int,
    before_block: Callable[[], None] | None,
) -> tuple[Tensor, Tensor]:
    """Return the statistics of so many releases with the canary, [repeats, 4], and of as many without it.

    Both are set beside the same earlier ones: what is counted of either stays independent from row to row.
    """
    found: tuple[list[Tensor], list[Tensor]] = ([], [])
    count = 0
    while count < repeats:
        if before_block is not None:
            before_block()
        earlier, _ = releases.drawn(canary=False)
        for canary, rows in zip((True, False), found, strict=True):
            own, beside = releases.drawn(canary=canary)
            rows.append(_statistics(own, beside, earlier, centre, along))
        count += len(earlier)
    return torch.cat(found[0])[:repeats], torch.cat(found[1])[:repeats]


def _statistics(
    own: Tensor, beside: Tensor, earlier: Tensor, centre: Tensor, along: Tensor
) -> Tensor:
    """Return what the attacker looks at of releases [n, d], as ``STATISTICS`` names it, [n, 4]."""
    place = (own - centre) @ along
    rest = own - centre - place[:, None] * along
    parts = [place, (own - beside) @ along, (own - earlier) @ along, rest.square().sum(1)]
    return torch.stack(parts, 1).nan_to_num(0, 0, 0)
