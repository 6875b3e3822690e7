"""The device: what every method's client has, written once around the phases that a method writes.

``fit`` decodes what came, calls the requested phase, and sends its result through ``release``, the one
place from which anything computed from private data leaves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
import torch
from flwr.client import NumPyClient
from flwr.common import Scalar
from torch import Tensor

from client_app.decode_cache import DECODE_CACHE
from client_app.draws import Deadline, Draws, SiteRound
from client_app.outbound import count_copies, outbound, received_model
from client_app.owner.ledger import Account
from client_app.owner.review import Review
from client_app.state import DeviceState, Tensors, payload_line
from client_app.time_estimate import estimated_seconds
from common.code.imports import load
from common.draws.seeding import generator
from common.errors import ConfigError, FederationError
from common.learning.measures import measure
from common.learning.run import Run
from common.learning.training import Local, Trained
from common.methods import resolve
from common.models import Classifier
from common.samples.inputs import Samples
from common.settings.base import Settings
from common.settings.sections import is_user_data
from common.specs.updates import COUNTS, TAKEN
from common.wire.form import Payload, Spec
from common.wire.weights import Weights
from synth.private_release import Gaussian

__all__ = ["DeviceClient", "Metrics", "NDArrays", "client_class", "phase", "phases_of"]

NDArrays = list[np.ndarray[Any, Any]]
Metrics = dict[str, Scalar]
_STATISTICS = "statistics"

S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class TrainedAhead:
    """A site's part of a training of many sites, and its share of the seconds that it took."""

    parameters: Mapping[str, Tensor]
    trained: Trained
    seconds: float


class DeviceClient(NumPyClient):
    """Base of the methods' clients; a subclass adds phases.

    Parameters
    ----------
    samples : Samples
        The site's training images, on the run's device.
    holdout : Samples
        The images the site keeps for its own evaluation; may be empty.
    user_data : bool
        Whether the images are the site's own and no partition of the run's data set. By default they count
        as its own.
    review : Review, optional
        How the site's owner looks at images before they leave; None if no review is configured.
    account : Account, optional
        The site's privacy ledger and budget; None in a simulation.
    mechanism : type of Gaussian
        How clipped sums are released: with noise, unless an audit looks at them.
    at : SiteRound, optional
        The round that a client inside another is made in; None of one that the server asks.
    slots : str
        What the names of this client's slots of memory begin with; empty for the method that the server asked.
    drawn : int
        How many examples an epoch of local training draws; 0 for as many as there are ``samples``.
    drawn_as : str
        What the site's draws go by (`common.sites.Site`); empty for its name.
    """

    def __init__(
        self,
        run: Run,
        site: str,
        samples: Samples,
        holdout: Samples,
        state: DeviceState,
        *,
        user_data: bool = True,
        review: Review | None = None,
        account: Account | None = None,
        mechanism: type[Gaussian] = Gaussian,
        at: SiteRound | None = None,
        slots: str = "",
        drawn: int = 0,
        drawn_as: str = "",
    ) -> None:
        self.run = run
        self.site = site
        self.drawn_as = drawn_as or site
        self.samples = samples
        self.holdout = holdout
        self.state = state
        self.user_data = user_data
        self.review = review
        self.account = account
        self.mechanism = mechanism
        self._slots, self._drawn = slots, drawn
        self.trained_ahead: TrainedAhead | None = None
        if at is not None:
            self.round = at

    @cached_property
    def round(self) -> SiteRound:
        """The round that is worked on: that of no instruction before `begin`."""
        return self._round_of({})

    # ---- what a phase uses ----------------------------------------------------------------------------

    def model(self, weights: Weights) -> Classifier:
        """Return the run's model with ``weights``, on the run's device; a part of it may be the site's own."""
        if self.run.config.model.stays_in_part:
            weights = weights.over(Weights(self.recall(_STATISTICS) or {}))
        return self.run.model_with(weights)

    def judged(self, weights: Weights) -> Classifier:
        """Return the model that the site judges where the server sent ``weights``: that one, unless it has its own."""
        return self.model(weights)

    def keep_own_part(self, model: Classifier) -> None:
        """Remember of a model that was trained what is the site's own: running statistics, ``model.personal``."""
        if self.run.config.model.stays_in_part:
            state = Weights.of(model).tensors
            own = {n: t for n, t in state.items() if n not in self.run.spec.names}
            self.remember(own, _STATISTICS)

    def settings(self, cls: type[S]) -> S:
        """Return the method's settings, which must be ``cls`` or inherit it; see `Run.settings`."""
        return self.run.settings(cls)

    def generator(self, purpose: str, server_round: int | None = None) -> torch.Generator:
        """Return the generator for ``purpose`` at this site, in this round unless another one is named."""
        at = self.server_round if server_round is None else server_round
        seed = self.run.config.seed
        return generator(seed, purpose, at, self.drawn_as, device=self.run.device)

    @property
    def draws(self) -> Draws:
        """What privacy rests on: charges, noise, Poisson samples, and what is drawn for single examples."""
        # Made each time: an attribute would hold the client, and what a site remembers, in memory.
        return Draws(self)

    @property
    def examples_an_epoch(self) -> int:
        """The number of examples that an epoch of local training draws: as many as the site has."""
        return self._drawn or len(self.samples)

    @property
    def server_round(self) -> int:
        """The round that is worked on."""
        return self.round.number

    @property
    def deadline(self) -> Deadline:
        """Until when the server waits for this phase."""
        return self.round.deadline

    def local(self, given: Any) -> Local | None:
        """Return the local training of phase "train", given what that phase is given; None where there is more to it.

        Where a class has this method itself, its simulated sites may be trained together (`client_app.ahead`), and
        ``trained_weights`` has the result; one that inherits it may do more.
        """
        return None

    # ---- what goes along with a result ----------------------------------------------------------------

    def report(self, **figures: float) -> None:
        """Send ``figures`` along with the phase's result; underscores become dashes.

        They may be computed from private data (losses, norms, times), and in a private run they stay at the site.
        """
        if not self.round.private:
            self.tell(**figures)

    def tell(self, **figures: float) -> None:
        """Send figures along that are not of private data, or have gone through a mechanism, in a private run too."""
        self.round.figures.update({k.replace("_", "-"): float(v) for k, v in figures.items()})

    def recall(self, slot: str = "") -> Tensors | None:
        """Return what this site remembered in ``slot``, as of its round that the server last took; None if nothing.

        A site that has nothing left of that round starts again; one that has seen a later round goes back with the
        server. A figure of the reply states either, for the server to log.

        Raises
        ------
        FederationError
            If the site remembers other rounds: the record or its memory is of another time.
        """
        return self.round.recall(self._slots + slot)

    def remember(self, tensors: Tensors, slot: str = "") -> None:
        """Keep ``tensors`` in ``slot`` for the round in which the server continues from this one's reply.

        A slot that is not written keeps its content.
        """
        self.round.written[self._slots + slot] = tensors

    # ---- a method inside a method ---------------------------------------------------------------------

    def client_of(self, method: str, samples: Samples, drawn: int = 0) -> DeviceClient:
        """Return the client of a method that this one's settings say they use, at work in the same round.

        It remembers in separate slots, and what it reports goes with this client's reply.

        Parameters
        ----------
        drawn : int
            How many of these an epoch of it draws; 0 for as many as this client's.
        """
        return client_class(method)(
            self.run.of(method),
            self.site,
            samples,
            self.holdout,
            self.state,
            user_data=self.user_data,
            mechanism=self.mechanism,
            at=self.round,
            slots=f"{self._slots}{method}.",
            drawn=drawn or self.examples_an_epoch,
            drawn_as=self.drawn_as,
        )

    # ---- Flower's NumPyClient -------------------------------------------------------------------------

    def begin(self, config: Mapping[str, Any]) -> None:
        """Take up an instruction, by its configuration; FederationError if that does not say of which round it is."""
        if "server-round" not in config:
            raise FederationError("the instruction does not say of which round it is")
        self.round = self._round_of(config)

    def _round_of(self, config: Mapping[str, Any]) -> SiteRound:
        return SiteRound(
            self.state,
            self.site,
            self.account,
            self.run.config.private,
            int(config.get("server-round", 0)),
            str(config.get("phase", "")),
            config.get(TAKEN, 0),
            Deadline.of(config),
        )

    def fit(self, parameters: NDArrays, config: Mapping[str, Any]) -> tuple[NDArrays, int, Metrics]:
        """Run the phase that ``config["phase"]`` names and return what it lets out.

        Raises
        ------
        PayloadError
            If ``parameters`` are not what the phase takes.
        FederationError
            If the client has no such phase, or the round's time is over before it is done.
        """
        self.begin(config)
        at = self.round
        work, takes = self.phase_named(at.phase)
        form = takes(self.run)
        given = DECODE_CACHE.decode(parameters, form)
        before = received_model(self, given, form)
        started = time.perf_counter()
        at.estimate = lambda: estimated_seconds(self, given)
        try:
            made = work(given)
        finally:
            at.estimate = None  # it and the client would hold each other
        if self.review is not None:
            name = f"{config.get('record', 'run')}-{self.site}"
            made = self.review.let_through(made, name, self.run.info, lambda: at.deadline.left)
        payload = outbound(self, made, before)
        at.end()
        # Of a payload that went through a mechanism a count of copies would be one more release, and no charged one.
        covered = at.private or at.charged is not None
        copies = None if covered else count_copies(payload, self.samples, self.run.info)
        if copies is not None:
            self.report(**copies.figures())
        self.report(seconds=time.perf_counter() - started + at.figures.get("seconds", 0.0))
        arrays = self.release(at.phase, payload, [*at.figures, "num-examples"])
        examples = len(self.samples) if self.run.config.tells_counts else 1
        return arrays, examples, {**at.figures}

    def evaluate(
        self, parameters: NDArrays, config: Mapping[str, Any]
    ) -> tuple[float, int, Metrics]:
        """Judge the weights on the images the site holds out.

        Raises
        ------
        FederationError
            If it holds out none, or the run is private: figures of private data stay where they are.
        """
        if self.run.config.private:
            raise FederationError(
                "evaluation at sites is not possible in a private run: set evaluation.on=server or none"
            )
        if not len(self.holdout):
            data = self.run.config.data
            share, name = data.held_by_sites, "data.site_holdout"
            if data.validated_at_sites:
                name = "data.validation"
            # a class's last example is never held out, however large the share
            cure = f"raise {name}, to .5 at the most, or give it more of them"
            if len(torch.unique(self.samples.labels)) == len(self.samples):
                cure = "give it two of a class at least"
            raise FederationError(
                f"site '{self.site}' holds out nothing to evaluate on: its examples are too few for "
                f"{name}={share:g}; {cure}"
            )
        # a server that does not name a round does not know that what is remembered is judged
        self.begin({TAKEN: None, **config})
        model = self.judged(DECODE_CACHE.weights(parameters, self.run.spec))
        wanted, more = self.run.config.evaluation.measure, dict[str, Any]()
        figures = measure(self.run, model, self.holdout)
        if self.run.config.model.stays_in_part or type(self).judged is not DeviceClient.judged:
            judged = {"accuracy": figures.accuracy, "loss": figures.loss}
            about = {"site": self.site, "round": self.server_round, "figures": judged}
            about["run-config"] = self.run.config.to_run_config()
            self.state.keep_model(Weights.of(model, copy=False).tensors, about)
        if wanted != "accuracy":
            places = enumerate(chain.from_iterable(figures.confusion))
            more[COUNTS] = [n for place, count in places if count for n in (place, count)]
        if wanted == "auc" and not math.isnan(figures.auc):
            more["auc"] = figures.auc
        self.release("evaluate", None, ["accuracy", "loss", "num-examples", *more])
        return figures.loss, figures.examples, {"accuracy": figures.accuracy, **more}

    # ---- the one way out ------------------------------------------------------------------------------

    def release(self, phase: str, payload: Payload | None, figures: Sequence[str]) -> NDArrays:
        """Encode what leaves, and note in the site's own log what it is, when it left and how large it was."""
        arrays = [] if payload is None else payload.encode()
        if self.state.logs_releases:
            kind = payload.kind if payload else ""
            self.state.log_release(payload_line(self.server_round, phase, kind, arrays, figures))
        return arrays

    def phase_named(self, name: str) -> tuple[Callable[[Any], Payload], Callable[[Run], Spec]]:
        """Return what runs a phase, and what gives its payload's form; FederationError if there is no such phase."""
        phases = phases_of(type(self))
        if name not in phases:
            raise FederationError(
                f"{type(self).__name__} has no phase '{name[:40]}', it has {', '.join(phases)}: server and device "
                "run different methods"
            )
        work: Callable[[Any], Payload] = getattr(self, phases[name].method)
        return work, phases[name].takes


def client_class(name: str) -> type[DeviceClient]:
    """Return a method's client; ConfigError if it names something else."""
    method = resolve(name)
    cls = load(method.client)
    if not (isinstance(cls, type) and issubclass(cls, DeviceClient)):
        raise ConfigError(
            f"{method.client} cannot be the client of {method.name}: it must inherit client_app.device.DeviceClient"
        )
    return cls


# ---- phases --------------------------------------------------------------------------------------
# How a client's method becomes a phase that the server can ask for by name.

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Phase:
    """A phase of a client: its name, what comes with it, and the method that runs it."""

    name: str
    takes: Callable[[Run], Spec]
    method: str


def phase(name: str, takes: Callable[[Run], Spec] = attrgetter("spec")) -> Callable[[F], F]:
    """Mark a method of a DeviceClient as the phase ``name``: from a decoded payload to the payload that leaves.

    ``takes`` gives the form of what comes with the instruction, by default the weights of the run's model.
    """

    def mark(function: F) -> F:
        function.__dict__["nectar_phase"] = Phase(name, takes, function.__name__)
        return function

    return mark


@cache
def phases_of(cls: type) -> Mapping[str, Phase]:
    """Return the phases of a client class by name; a subclass's method of the same phase takes its parent's place."""
    phases: dict[str, Phase] = {}
    for base in reversed(cls.__mro__):
        for value in vars(base).values():
            marked = getattr(value, "nectar_phase", None)
            if isinstance(marked, Phase):
                phases[marked.name] = marked
    return phases


# ---- small classes -------------------------------------------------------------------------------
# Whether a site has enough images of a class to let real ones of it be what it sends begins with.

#: images of a class that a site must have at the least, where the run sets no number
LEAST = 20


def refuse_small_classes(client: DeviceClient, sent: int) -> None:
    """Refuse to begin with real images of a class of which the site has few, if they may be private.

    The start of a small class is most of the class, its mean hardly moves, and so its images leave nearly as they
    are; means of a few of few images can be separated again. A public data set gives no private picture away.

    Parameters
    ----------
    sent : int
        What the site sends of a class, or how many images one of these is the mean of if that is more.

    Raises
    ------
    FederationError
        If it has fewer than ``data.smallest_class`` images of a class that it holds.
    """
    config = client.run.config
    counts = client.run.task.class_counts(client.samples.labels)
    if counts is None or not is_user_data(config.dataset):
        return
    least = config.data.smallest_class or max(LEAST, 2 * sent)
    if any(0 < count < least for count in counts):
        raise FederationError(
            f"this site has a class of fewer than {least} images, which would leave nearly as they are where they "
            f"are the start ({config.section}.start): choose start=noise, or lower data.smallest_class if they may"
        )
