"""FedDPMS' means under audit, given the encoder's weights: the mean of a class's codes, with noise once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from common.draws.private_draws import KeyStream
from common.privacy.accounting import latent_sensitivity
from common.privacy.events import Adjacency, Event
from synth.latent_sharing import mean_steps
from synth.private_release import Gaussian

#: releases in a call
_BLOCK = 2000


@dataclass(frozen=True)
class LatentReleases:
    """Means of ``images`` codes in [0, 1]^l, one of them in one corner, or exchanged for one in the opposite corner.

    An encoder that saturates gives such codes of a bright and of a dark image. The others are in the dark corner. That
    an encoder trained on the very image moves the mean by more is no part of the claim, nor of this.

    Parameters
    ----------
    noise_multiplier : float
        sigma over the mean's sensitivity.
    images : int
        m.
    dimension : int
        l.
    clip : float
        Longest code; 0: any.
    """

    noise_multiplier: float
    images: int = 20
    dimension: int = 32
    clip: float = 0.0

    claimed: Adjacency = "replace-one"

    @property
    def event(self) -> Event:
        """One release of one image exchanged for another."""
        return Event("feddpms-means", self.noise_multiplier, adjacency="replace-one")

    @cached_property
    def gaussian(self) -> Gaussian:
        """The noise on the mean."""
        sensitivity = latent_sensitivity(self.dimension, self.images, self.clip)
        return Gaussian(self.noise_multiplier * sensitivity, 1.0, KeyStream().normal)

    def expected(self, *, canary: bool) -> Tensor:
        """Return the mean of the codes."""
        return self.gaussian.values(self._steps(canary=canary))

    def _steps(self, *, canary: bool) -> Tensor:
        codes = torch.zeros(self.images, self.dimension)
        if self.clip:  # between two axes: no two codes of this length are further apart
            codes[:, 0] = math.sqrt(self.dimension)
        if canary:
            codes[0] = 0.0
            codes[0, 1:] = 1.0
            codes[0, 0] = 0.0 if self.clip else 1.0
        labels = torch.zeros(self.images, dtype=torch.int64)
        return mean_steps(codes, labels, (0,), self.clip, self.gaussian)[0]

    def drawn(self, *, canary: bool) -> tuple[Tensor, Tensor]:
        """Return releases, and as many without the canary."""
        return self._released(canary=canary), self._released(canary=False)

    def _released(self, *, canary: bool) -> Tensor:
        steps = self._steps(canary=canary)
        return self.gaussian.released(steps.expand(_BLOCK, self.dimension))
