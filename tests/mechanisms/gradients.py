"""A step of DP-SGD under audit: clipped sums once, of a sample with the canary and without, and noise each time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from common.draws.private_draws import KeyStream, uniform_of
from common.privacy.events import Adjacency, Event
from synth.linear_gradients import clipped_sum, finely
from synth.private_release import Gaussian, noisy_mean

#: numbers that an image has, releases in a call
_SIZE, _BLOCK = 16, 2000


def system_uniform(count: int) -> Tensor:
    """Draw from the uniform distribution over (0, 1) with the operating system's entropy, float64 [count]."""
    return uniform_of(np.frombuffer(os.urandom(8 * count), np.uint64))


def _loss(model: nn.Module, x: Tensor) -> Tensor:
    return torch.as_tensor(model(x)).mean()


@dataclass(frozen=True)
class GradientReleases:
    """Steps of DP-SGD on a dark example, whose gradient is nothing, and on a canary, whose gradient is beyond the clip.

    Parameters
    ----------
    noise_multiplier : float
        sigma.
    sample_rate : float
        With which an example is drawn.
    clip : float
        C.
    """

    noise_multiplier: float
    sample_rate: float = 1.0
    clip: float = 1.0

    claimed: Adjacency = "add-remove"

    @property
    def event(self) -> Event:
        """One step."""
        return Event("dp-sgd", self.noise_multiplier, self.sample_rate)

    @cached_property
    def gaussian(self) -> Gaussian:
        """The clip and the noise, in the steps of a linear layer."""
        gaussian = Gaussian(self.noise_multiplier, self.clip, KeyStream().normal)
        return finely(gaussian, nn.Linear(1, 1), expected=1.0)

    def expected(self, *, canary: bool) -> Tensor:
        """Return the step without noise of all examples."""
        return self.gaussian.values(self.sums[int(canary)]).float()

    def drawn(self, *, canary: bool) -> tuple[Tensor, Tensor]:
        """Return steps, and as many without the canary."""
        return self._released(canary=canary), self._released(canary=False)

    def _released(self, *, canary: bool) -> Tensor:
        there = system_uniform(_BLOCK) < self.sample_rate
        sums = self.sums[(there & canary).long()]
        return noisy_mean({"weight": sums}, self.gaussian, expected=1.0)["weight"]

    @cached_property
    def sums(self) -> Tensor:
        """The clipped sums of the sample without the canary and with it, int64 [2, numbers of the model]."""
        model = nn.Linear(_SIZE, 1, bias=False)
        dark, canary = torch.zeros(1, _SIZE), torch.full((1, _SIZE), 1e4)
        batches = dark, torch.cat([dark, canary])
        found = [clipped_sum(model, _loss, (batch,), self.gaussian) for batch in batches]
        return torch.stack([each["weight"].flatten() for each in found])
