"""How long a private phase would take, by its own steps on made-up rows: asked before it is charged."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from copy import copy
from dataclasses import replace
from logging import getLogger
from typing import TYPE_CHECKING

import torch
from flwr.app import RecordDict

from client_app.deadline import Deadline
from client_app.site_round import Charged
from client_app.state import ContextState
from common.draws.seeding import process_wide
from common.errors import NectarError
from common.privacy.told import Told
from common.samples.inputs import Samples
from common.wire.codec import Payload

if TYPE_CHECKING:
    from client_app.device import DeviceClient

logger = getLogger("flwr")


class _Enough(BaseException):
    """What an estimate ends with, in the middle of the phase."""


class _Watch(Deadline):
    """A deadline at which a phase looks between two steps: two of them, once it is charged, are enough."""

    def __init__(self, seconds: float, charged: Charged) -> None:
        super().__init__(seconds)
        self._charged, self._looks = charged, list[float]()
        self.seconds = 0.0

    @property
    def left(self) -> float:
        self.check()
        return math.inf

    def check(self) -> None:
        super().check()
        if not self._charged.steps:
            return
        self._looks.append(time.monotonic())
        each = [after - before for before, after in zip(self._looks, self._looks[1:], strict=False)]
        self.seconds = self._charged.steps * min(each, default=0.0)
        # A process's first step may be far longer than the others.
        if len(each) == 2 or (each and self.seconds <= super().left):
            raise _Enough


def estimated_seconds(client: DeviceClient, given: Payload) -> float:
    """Return how long the private steps of the client's phase would take; 0 where that cannot be told.

    The phase itself is carried out, until its second step is done, by a copy of the client that has made-up examples,
    as many as are publicly known, and that charges, remembers, tells and sends nothing.
    """
    charged, at = Charged(told=Told()), client.round
    watch = _Watch(client.deadline.left, charged)
    tried = copy(client)
    tried.samples = tried.holdout = _made_up(client)
    tried.state = ContextState(RecordDict())
    tried.round = replace(at, memory=at.memory.apart(), charged=charged, deadline=watch, figures={})
    try:
        with process_wide(0, "made-up"), suppress(_Enough):
            tried.phase_named(at.phase)[0](given)
            watch.check()  # the end of the only step
    except NectarError:
        raise
    except Exception:
        logger.exception("the phase %s cannot be tried on made-up rows", at.phase)
    return watch.seconds


def _made_up(client: DeviceClient) -> Samples:
    """Return random examples of the run's form, all the same, with labels of the classes that are known to be held."""
    config, info, draws = client.run.config, client.run.info, torch.Generator().manual_seed(0)
    public, labels = config.tells_counts, client.samples.labels
    count = len(labels) if public else max(1, config.privacy.examples)
    if not info.has_values:
        text = torch.randint(len(info.classes), (1, *info.shape), generator=draws).expand(count, -1)
        return Samples.of(text, text).to(labels.device)
    held = torch.unique(labels).cpu() if public else torch.arange(len(info.classes))
    raw = torch.randn(1, *info.shape, generator=draws).to(labels.device)
    return Samples.of(
        raw.expand(count, -1, -1, -1), held[torch.arange(count) % len(held)].to(labels.device)
    )
