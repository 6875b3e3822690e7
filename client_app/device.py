"""The device: what every method's client has, written once around the phases that a method writes.

``fit`` decodes what came, calls the phase the server asked for, and lets its result out through ``release``, the one
place from which anything computed from private data leaves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from logging import getLogger
from typing import Any, TypeVar

import numpy as np
import torch
from flwr.client import NumPyClient
from flwr.common import Scalar

from client_app.counted_copies import count_copies
from client_app.deadline import Deadline
from client_app.releases import payload_line
from client_app.state import DeviceState, Tensors
from common.data import Samples
from common.errors import FederationError
from common.memory import MEMORY_LOST, TAKEN
from common.models import Classifier
from common.run import Run
from common.seeding import generator
from common.settings.base import Settings
from common.training import evaluate
from common.wire import Payload, Weights

logger = getLogger("flwr")

NDArrays = list[np.ndarray[Any, Any]]
Metrics = dict[str, Scalar]
F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S", bound=Settings)


def phase(name: str) -> Callable[[F], F]:
    """Mark a method of a DeviceClient as the phase ``name``: from a decoded payload to the payload that leaves."""

    def mark(function: F) -> F:
        function.__dict__["nectar_phase"] = name
        return function

    return mark


class DeviceClient(NumPyClient):
    """Base of the methods' clients; a subclass adds phases.

    Parameters
    ----------
    run : Run
        The run's configuration, model and data shape.
    site : str
        This site's name.
    samples : Samples
        The site's training images, on the run's device.
    holdout : Samples
        The images the site keeps for its own evaluation; may be empty.
    state : DeviceState
        What the site remembers between rounds.
    """

    def __init__(
        self, run: Run, site: str, samples: Samples, holdout: Samples, state: DeviceState
    ) -> None:
        self.run = run
        self.site = site
        self.samples = samples
        self.holdout = holdout
        self.state = state
        self.server_round = 0
        self.deadline = Deadline()
        self.taken = 0
        self._metrics: dict[str, float] = {}

    # ---- what a phase uses ----------------------------------------------------------------------------

    def model(self, weights: Weights) -> Classifier:
        """Return the run's model with ``weights``, on the run's device."""
        model = self.run.build_model()
        weights.load_into(model)
        return model

    def settings(self, cls: type[S]) -> S:
        """Return the method's settings, which must be ``cls`` or inherit it.

        Raises
        ------
        FederationError
            If they are others: the registry pairs this client with a method that it cannot serve.
        """
        found = self.run.config.settings
        if not isinstance(found, cls):
            raise FederationError(
                f"{type(self).__name__} needs settings that inherit {cls.__name__}, those of "
                f"{self.run.config.method} are {type(found).__name__}: let them inherit it, or write a client"
            )
        return found

    def generator(self, purpose: str, server_round: int | None = None) -> torch.Generator:
        """Return the generator for ``purpose`` at this site, in this round unless another one is named."""
        at = self.server_round if server_round is None else server_round
        seed = self.run.config.seed
        return generator(seed, purpose, at, self.site, device=self.run.device)

    def report(self, **figures: float) -> None:
        """Send ``figures`` along with the phase's result; underscores become dashes."""
        self._metrics.update({key.replace("_", "-"): float(v) for key, v in figures.items()})

    def recall(self) -> Tensors | None:
        """Return what this site remembered of the round whose work the server last took; None if it took none yet.

        A site that has nothing left of it begins afresh, and says so beside its reply, for the server to log.

        Raises
        ------
        FederationError
            If the site remembers other rounds: the record or its memory is of another time.
        """
        rounds = self.state.rounds()
        if self.taken in rounds:
            return self.state.load(self.taken)
        if self.taken and rounds:
            raise FederationError(
                f"this site remembers round {', '.join(map(str, rounds))}, and the server goes on from its round "
                f"{self.taken}: put back the record or the site's state of the same time, or delete this run's state "
                "at the site to let it begin afresh"
            )
        if self.taken:
            logger.info("%s no longer has what it remembered and begins afresh", self.site)
            self._metrics[MEMORY_LOST] = 1.0
        return None

    def remember(self, tensors: Tensors) -> None:
        """Keep ``tensors`` for the round in which the server goes on from this one's reply."""
        self.state.save(self.server_round, tensors, self.taken)

    # ---- Flower's NumPyClient -------------------------------------------------------------------------

    def fit(self, parameters: NDArrays, config: Mapping[str, Any]) -> tuple[NDArrays, int, Metrics]:
        """Run the phase that ``config["phase"]`` names and return what it lets out.

        Raises
        ------
        PayloadError
            If ``parameters`` are not the weights of the run's model.
        FederationError
            If the client has no such phase, or the round's time is over before it is done.
        """
        self.server_round, self.taken = int(config["server-round"]), int(config.get(TAKEN, 0))
        self.deadline = Deadline.of(config)
        work = self._phase(str(config["phase"]))
        weights = Weights.decode(parameters, self.run.spec)
        self._metrics = {}
        started = time.perf_counter()
        payload = work(weights)
        copies = count_copies(payload, self.samples, self.run.info)
        if copies is not None:  # computed from private data, and told as every such figure is
            self.report(**copies.figures())
        self.report(seconds=time.perf_counter() - started)
        arrays = self.release(str(config["phase"]), payload, [*self._metrics, "num-examples"])
        return arrays, len(self.samples), {**self._metrics}

    def evaluate(
        self, parameters: NDArrays, config: Mapping[str, Any]
    ) -> tuple[float, int, Metrics]:
        """Judge the weights on the images the site holds out.

        Raises
        ------
        FederationError
            If it holds out none.
        """
        if not len(self.holdout):
            raise FederationError(
                f"site '{self.site}' holds out no images to evaluate on: set data.site_holdout above 0"
            )
        self.server_round = int(config["server-round"])
        model = self.model(Weights.decode(parameters, self.run.spec))
        settings = self.run.config
        figures = evaluate(
            model,
            self.holdout,
            self.run.task,
            settings.evaluation.batch,
            settings.compute.precision,
        )
        self.release("evaluate", None, ["accuracy", "loss", "num-examples"])
        return figures.loss, figures.examples, {"accuracy": figures.accuracy}

    # ---- the one way out ------------------------------------------------------------------------------

    def release(self, phase: str, payload: Payload | None, figures: Sequence[str]) -> NDArrays:
        """Encode what leaves, and note in the site's own log what it is, when it left and how large it was."""
        compression = self.run.config.wire.compression
        arrays = [] if payload is None else payload.encode(compression)
        kind = payload.kind if payload else ""
        self.state.log_release(payload_line(self.server_round, phase, kind, arrays, figures))
        return arrays

    def _phase(self, name: str) -> Callable[[Weights], Payload]:
        phases = phases_of(type(self))
        if name not in phases:
            raise FederationError(
                f"{type(self).__name__} has no phase '{name[:40]}', it has {', '.join(phases)}: server and device "
                "run different methods"
            )
        work: Callable[[Weights], Payload] = getattr(self, phases[name])
        return work


def phases_of(cls: type[DeviceClient]) -> dict[str, str]:
    """Return the phases of a client class: name -> attribute."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        for attribute, value in vars(base).items():
            name = getattr(value, "nectar_phase", None)
            if name is not None:
                found[name] = attribute
    return found
