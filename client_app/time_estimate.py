"""How long a private phase would take, by its own steps on made-up rows: asked before it is charged."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from flwr.app import RecordDict

from client_app.draws import Deadline
from client_app.state import ContextState
from common.draws.seeding import process_wide
from common.privacy.ledger import PrivacyReport
from common.samples.inputs import Samples
from common.wire.form import Payload

if TYPE_CHECKING:
    from client_app.device import DeviceClient


class _Enough(BaseException):
    """What an estimate ends with, in the middle of the phase."""


class _Watch(Deadline):
    """A deadline at which a phase looks between two steps: two of them, once it is charged, are enough."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self._last, self._times = 0.0, list[float]()

    @property
    def seconds(self) -> float:
        """How long all steps take, by the shortest: a process's first may be far longer than the others."""
        return self.steps * min(self._times, default=0.0)

    @property
    def left(self) -> float:
        self.check()
        return math.inf

    def check(self) -> None:
        super().check()
        if self._last:
            self._times.append(time.monotonic() - self._last)
        if self.steps:
            self._last = time.monotonic()
        if len(self._times) == 2 or 0 < self.seconds <= super().left:
            raise _Enough


def estimated_seconds(client: DeviceClient, given: Payload) -> float:
    """Return how long the private steps of the client's phase would take; 0 where it never looks at its deadline.

    A copy of the client carries the phase out until its second step is done. It has as many synthetic examples as are
    publicly known, and charges, remembers, reports and sends nothing.
    """
    at, watch, tried = client.round, _Watch(client.deadline.left), copy(client)
    tried.samples = tried.holdout = _made_up(client)
    tried.state = ContextState(RecordDict())
    nothing: dict[str, Any] = {"account": None, "charged": PrivacyReport(), "estimate": None}
    tried.round = replace(at, deadline=watch, figures={}, written={}, **nothing)
    with process_wide(0, "made-up"), suppress(_Enough):
        tried.phase_named(at.phase)[0](given)
        watch.check()  # the end of the only step
    return watch.seconds


def _made_up(client: DeviceClient) -> Samples:
    """Return random examples of the run's form, all the same, with labels of the classes that are known to be held."""
    config, info, labels = client.run.config, client.run.info, client.samples.labels
    public, classes = config.tells_counts, len(info.classes)
    held = torch.unique(labels).cpu() if public else torch.arange(classes)
    at = torch.arange(len(labels) if public else max(1, config.privacy.examples)) % len(held)
    if not info.has_values:
        at = torch.zeros(len(at), *info.target_shape, dtype=torch.int64)
        return Samples.of(at.new_zeros(len(at), *info.shape), at).to(labels.device)
    raw = torch.randn(1, *info.shape, generator=torch.Generator().manual_seed(0))
    return Samples.of(raw.to(labels.device).expand(len(at), -1, -1, -1), held[at].to(labels.device))
