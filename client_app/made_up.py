"""What a site tries on made-up rows before it is charged: a step of a phase, whose time says if the phase can end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from common.draws.seeding import process_wide
from common.learning.run import Run
from common.samples.inputs import Samples


@dataclass(frozen=True)
class Planned:
    """So many steps, each about as long as ``step``, which takes one on made-up rows and changes nothing.

    ``more`` is what else they take, in seconds.
    """

    step: Callable[[], object]
    steps: int
    more: float = 0.0

    def seconds(self) -> float:
        """Take a step, and return how long all would take."""
        with process_wide(0, "made-up"):
            began = time.monotonic()
            self.step()
            return self.more + self.steps * (time.monotonic() - began)


def made_up(run: Run, count: int) -> Samples:
    """Return so many examples of the run's form, of random numbers: nobody's."""
    info, draws = run.info, torch.Generator().manual_seed(0)
    shape, classes = (count, *info.shape), len(info.classes)
    labels = torch.randint(classes, (count, *info.target_shape), generator=draws)
    if info.has_values:
        return Samples.of(torch.randn(shape, generator=draws), labels).to(run.device)
    return Samples.of(torch.randint(classes, shape, generator=draws), labels).to(run.device)
