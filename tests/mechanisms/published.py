"""The mechanism of FedDM's paper as it is printed (Algorithm 1, lines 16 and 17): its averaged gradient is clipped."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from common.draws.private_draws import KeyStream
from common.privacy.events import Adjacency, Event
from tests.mechanisms.matching import MatchingReleases

#: releases in a call
_BLOCK = 1000


@dataclass(frozen=True)
class PublishedReleases:
    """One iteration of one class whose batch is full: clip(mean g, C) + N(0, sigma^2 C^2 I) / |B|.

    The paper accounts for it as for DP-SGD with sigma. Two averages may lie 2 C apart after the clip, where one example
    is turned round, and the noise is for C / |B|: the noise multiplier is sigma / (2 |B|).

    Parameters
    ----------
    noise_multiplier : float
        sigma.
    batch : int
        |B|, the paper's 256 by default.
    clip : float
        C, the paper's 5 by default.
    """

    noise_multiplier: float
    batch: int = 256
    clip: float = 5.0

    claimed: Adjacency = "add-remove"

    @property
    def event(self) -> Event:
        """What the paper takes one iteration for."""
        return Event("feddm-published", self.noise_multiplier)

    @property
    def true_event(self) -> Event:
        """What one iteration is, of one example exchanged for another."""
        return Event(
            "feddm-published", self.noise_multiplier / (2 * self.batch), adjacency="replace-one"
        )

    def expected(self, *, canary: bool) -> Tensor:
        """Return the clipped average over dark images, one of which the canary stands in for."""
        whole = MatchingReleases("gradient", 0.0, clip=math.inf)
        dark, both = (whole.expected(canary=c) for c in (False, True))
        others = (self.batch - 1) * dark
        mean = (others + (both - dark if canary else dark)) / self.batch
        return mean * min(1.0, self.clip / float(mean.norm()))

    def drawn(self, *, canary: bool) -> tuple[Tensor, Tensor]:
        """Return releases, and as many without the canary."""
        own, other = (self.expected(canary=c) for c in (canary, False))
        return self._released(own), self._released(other)

    def _released(self, mean: Tensor) -> Tensor:
        noise = KeyStream().normal((_BLOCK, len(mean))).to(mean.dtype)
        return mean + self.noise_multiplier * self.clip / self.batch * noise
