"""The device: what every method's client has, written once around the phases that a method writes.

``fit`` decodes what came, calls the phase the server asked for, and lets its result out through ``release``, the one
place from which anything computed from private data leaves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import count
from typing import Any, TypeVar

import numpy as np
import torch
from flwr.client import NumPyClient
from flwr.common import Scalar
from torch import Tensor

from client_app import membership
from client_app.arrivals import ARRIVALS
from client_app.counted_copies import count_copies
from client_app.deadline import Deadline
from client_app.memory import Memory
from client_app.owner.ledger import Account
from client_app.owner.review import Review
from client_app.private_draws import PrivateDraws, Rows
from client_app.releases import payload_line
from client_app.state import DeviceState, Tensors
from common.draws.seeding import generator
from common.errors import ConfigError, FederationError
from common.learning.run import Run
from common.learning.training import evaluate
from common.methods import is_import_path, load, resolve
from common.models import Classifier
from common.privacy.events import Event
from common.privacy.told import Told
from common.samples.inputs import Samples
from common.settings.base import Settings
from common.specs.names import TAKEN
from common.wire.bundle import Bundle
from common.wire.codec import Payload, Spec
from common.wire.weights import Weights
from synth.private_release import Gaussian

NDArrays = list[np.ndarray[Any, Any]]
Metrics = dict[str, Scalar]
_STATISTICS = "statistics"

F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S", bound=Settings)


def the_weights(run: Run) -> Spec:
    """Say that a phase takes the weights of the run's model."""
    return run.spec


def phase(name: str, takes: Callable[[Run], Spec] = the_weights) -> Callable[[F], F]:
    """Mark a method of a DeviceClient as the phase ``name``: from a decoded payload to the payload that leaves.

    ``takes`` says what comes with the instruction, the weights of the run's model where nothing else is said.
    """

    def mark(function: F) -> F:
        function.__dict__["nectar_phase"] = Phase(name, takes, function.__name__)
        return function

    return mark


@dataclass(frozen=True)
class Phase:
    """A phase of a client: its name, what comes with it, and the method that runs it."""

    name: str
    takes: Callable[[Run], Spec]
    method: str


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
    own_data : bool
        Whether the images are the site's own and no partition of the run's data set. Where nobody says, they count
        as its own.
    review : Review, optional
        How the site's owner looks at images before they leave; None where nobody asks for it.
    account : Account, optional
        The site's privacy ledger and budget; None in a simulation.
    draws : PrivateDraws, optional
        What it draws for its privacy, of ``account`` where nothing is said.
    """

    def __init__(
        self,
        run: Run,
        site: str,
        samples: Samples,
        holdout: Samples,
        state: DeviceState,
        *,
        own_data: bool = True,
        review: Review | None = None,
        account: Account | None = None,
        draws: PrivateDraws | None = None,
    ) -> None:
        self.run = run
        self.site = site
        self.samples = samples
        self.holdout = holdout
        self.state = state
        self.own_data = own_data
        self.review = review
        self.server_round = 0
        self.deadline = Deadline()
        self.taken = 0
        self.drawn = 0
        self._metrics: dict[str, float] = {}
        self._phase = ""
        self._private = run.config.private
        self._draws = draws or PrivateDraws(run.config, own_data, account)
        self._host: DeviceClient | None = None
        self._within = ""

    # ---- what a phase uses ----------------------------------------------------------------------------

    def model(self, weights: Weights) -> Classifier:
        """Return the run's model with ``weights``, on the run's device; running statistics may be the site's own."""
        if self._local_statistics:
            weights = weights.over(Weights(self.recall(_STATISTICS) or {}))
        return self.run.model_with(weights)

    def keep_statistics(self, model: Classifier) -> None:
        """Remember the running statistics of a model that was trained, where they are the site's own."""
        if self._local_statistics:
            state = Weights.of(model).tensors
            own = {n: t for n, t in state.items() if n not in self.run.spec.names}
            self.remember(own, _STATISTICS)

    @property
    def _local_statistics(self) -> bool:
        return self.run.config.model.statistics == "local"

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

    # ---- what privacy rests on ------------------------------------------------------------------------

    def charge(self, *events: Event) -> None:
        """Enter what is about to be released into the site's ledger, which is on disk before any noise is drawn.

        A site that is killed behind this has counted a release too many, never one too few; a round that is repeated
        is charged again. In a simulation, and where noise is the seed's, the charge stands in the run's record alone.

        Parameters
        ----------
        events : Event
            All that this phase is going to draw noise for.

        Raises
        ------
        FederationError
            If the site's own budget does not allow it, it keeps no ledger, or its ledger cannot be relied on; or if
            the site has data of its own, and the run asks it for seeded noise.
        """
        phase, method = self._phase, self.run.config.section
        tell = not self._private or self.run.config.privacy.counts == "public"
        self._draws.charge(events, self.server_round, phase, method, tell=tell)

    @property
    def told(self) -> Told | None:
        """What goes along with this phase's reply about its charges; None where there were none."""
        return self._draws.told

    def sample(self, purpose: str, rate: float | Tensor, pool: Samples | None = None) -> Tensor:
        """Draw a Poisson sample, on which privacy rests: each example by itself.

        Parameters
        ----------
        purpose : str
            What it is for. Seeded, a purpose gives the same sample each time that it is named in a round.
        rate : float or Tensor
            The chance of all, from 0 to 1, or of each, float64 on the run's device.
        pool : Samples, optional
            The examples; None: all that the site has.

        Returns
        -------
        Tensor
            Positions, in order, int64, on the run's device; there may be none.

        Raises
        ------
        FederationError
            As `noise` does.
        """
        of = self.samples if pool is None else pool
        every = torch.arange(len(of), device=self.run.device)
        return (self.rows(purpose, of)(0, every).uniform() < rate).nonzero().flatten()

    def rows(self, purpose: str, pool: Samples | None = None) -> Rows:
        """Return what gives examples random numbers inside a private step, each example its own.

        What is drawn for an example there (its augmentation, a layer's dropout, a code's noise) must change with no
        other example's presence or place: else one more changes everybody's contribution.

        Parameters
        ----------
        purpose : str
            What it is for. Seeded, an example draws the same in a step of a purpose each time in a round.
        pool : Samples, optional
            The examples; None: all that the site has.

        Returns
        -------
        callable
            (step, positions in the pool, int64 [n]) -> `synth.row_draws.RowDraws` of n rows.

        Raises
        ------
        FederationError
            As `noise` does.
        """
        seed = self.generator(purpose).initial_seed()
        found = self._draws.rows(self.samples if pool is None else pool, seed, self.run.device)
        self._tell_if_seeded()
        return found

    def chosen(self, purpose: str, share: float) -> Tensor:
        """Return the positions of examples that are used for ``purpose``, each chosen by itself with this chance.

        They are the same in every round and process, and one example more changes whether no other is among them: what
        a private step may train on. How many there are is private.

        Raises
        ------
        FederationError
            If the site cannot keep the key by which they are chosen.
        """
        key = self._draws.membership_key(self.run, self.site)
        found = membership.chosen(self.samples, key, purpose, share)
        return torch.from_numpy(found).to(self.run.device)

    def gaussian(self, purpose: str, noise_multiplier: float, clip: float) -> Gaussian:
        """Return the Gaussian mechanism for sums of contributions no longer than ``clip``, other noise each time.

        Parameters
        ----------
        purpose : str
            What the noise is for.
        noise_multiplier : float
            sigma, the noise's standard deviation over ``clip``.
        clip : float
            C.
        """
        passes = count()

        def normal(shape: Sequence[int]) -> Tensor:
            return self.noise(f"{purpose} {next(passes)}", shape)

        return self._draws.gaussian(noise_multiplier, clip, normal)

    @property
    def draws_are_seeded(self) -> bool:
        """Whether what privacy rests on is drawn from the run's seed, which guarantees nothing."""
        return self._draws.seeded

    def _tell_if_seeded(self) -> None:
        if self.draws_are_seeded:
            self.tell(seeded_noise=1)

    def noise(self, purpose: str, shape: Sequence[int]) -> Tensor:
        """Draw the noise that privacy rests on, standard normal, and say beside the result if it is the seed's.

        Parameters
        ----------
        purpose : str
            What it is for. Seeded, a purpose gives the same noise each time that it is named in a round.
        shape : sequence of int
            Of the result.

        Returns
        -------
        Tensor
            Float32, on the run's device.

        Raises
        ------
        FederationError
            If nothing was charged for it, or the site has data of its own, and the run asks it for seeded noise.
        """
        drawn = self._draws.normal(shape, lambda: self.generator(purpose), self.run.device)
        self._tell_if_seeded()
        return drawn

    # ---- what goes along with a result ----------------------------------------------------------------

    def report(self, **figures: float) -> None:
        """Send ``figures`` along with the phase's result; underscores become dashes.

        They may be computed from private data (losses, norms, times), and in a private run they stay at the site.
        """
        if not self._private:
            self.tell(**figures)

    def tell(self, **figures: float) -> None:
        """Send figures along that are none of private data, or have gone through a mechanism, in a private run too."""
        self._metrics.update({key.replace("_", "-"): float(v) for key, v in figures.items()})

    def recall(self, slot: str = "") -> Tensors | None:
        """Return what this site remembered in ``slot``, as of its round that the server last took; None if nothing.

        A site that has nothing left of that round begins afresh; one that the server had told of a later round goes
        back with it. Either is said beside the reply, for the server to log.

        Raises
        ------
        FederationError
            If the site remembers other rounds: the record or its memory is of another time.
        """
        return self._memory.read(self._within + slot)

    def remember(self, tensors: Tensors, slot: str = "") -> None:
        """Keep ``tensors`` in ``slot`` for the round in which the server goes on from this one's reply.

        A slot that is not written stays as it was.
        """
        self._memory.write(self._within + slot, tensors)

    @property
    def _memory(self) -> Memory:
        if self._host is not None:
            return self._host._memory
        return self._of_the_round

    @cached_property
    def _of_the_round(self) -> Memory:
        return Memory(self.state, self.site, self.taken)

    # ---- a method inside a method ---------------------------------------------------------------------

    def client_of(self, method: str, samples: Samples) -> DeviceClient:
        """Return the client of a method that this one's settings say they use, at work in the same round.

        It remembers in slots of its own, and what it reports goes with this client's reply. An epoch of it draws as
        many of ``samples`` as the site has images of its own.

        Parameters
        ----------
        method : str
            Its name.
        samples : Samples
            What it trains on.
        """
        made = client_class(method)(
            self.run.of(method),
            self.site,
            samples,
            self.holdout,
            self.state,
            own_data=self.own_data,
            draws=self._draws,
        )
        made.server_round, made.taken, made.deadline = self.server_round, self.taken, self.deadline
        made.drawn = self.examples_an_epoch
        made._host, made._within = self, f"{self._within}{method}."
        made._metrics = self._metrics
        made._phase, made._private = self._phase, self._private
        return made

    @property
    def examples_an_epoch(self) -> int:
        """How many examples an epoch of local training draws: as many as the site has of its own."""
        return self.drawn or len(self.samples)

    # ---- Flower's NumPyClient -------------------------------------------------------------------------

    def _take_up(self, config: Mapping[str, Any]) -> None:
        """Note the round of an instruction, and the one of this site's that the server last took."""
        if "server-round" not in config:
            raise FederationError("the instruction does not say of which round it is")
        self.server_round, self.taken = int(config["server-round"]), int(config.get(TAKEN, 0))
        self.__dict__.pop("_of_the_round", None)

    def fit(self, parameters: NDArrays, config: Mapping[str, Any]) -> tuple[NDArrays, int, Metrics]:
        """Run the phase that ``config["phase"]`` names and return what it lets out.

        Raises
        ------
        PayloadError
            If ``parameters`` are not what the phase takes.
        FederationError
            If the client has no such phase, or the round's time is over before it is done.
        """
        self._take_up(config)
        self.deadline, named = Deadline.of(config), str(config.get("phase", ""))
        work, takes = self.phase_named(named)
        spec = takes(self.run)
        given = ARRIVALS.decode(parameters, spec)
        self._metrics, self._phase, self._draws.told = {}, named, None
        started = time.perf_counter()
        payload = self._let_through(work(given), str(config.get("record", "run")))
        self._memory.save(self.server_round)
        self._metrics |= self._memory.figures
        covered = (
            self._private or self.told is not None
        )  # a count past a mechanism would be one more release
        copies = None if covered else count_copies(payload, self.samples, self.run.info)
        if copies is not None:
            self.report(**copies.figures())
        self.report(seconds=time.perf_counter() - started)
        arrays = self.release(self._phase, payload, [*self._metrics, "num-examples"])
        examples = len(self.samples) if self.run.config.tells_counts else 1
        return arrays, examples, {**self._metrics}

    def evaluate(
        self, parameters: NDArrays, config: Mapping[str, Any]
    ) -> tuple[float, int, Metrics]:
        """Judge the weights on the images the site holds out.

        Raises
        ------
        FederationError
            If it holds out none, or the run is private: figures of private data stay where they are.
        """
        if self._private:
            raise FederationError(
                "a private run learns no figure of this site's examples: set evaluation.on=server or none"
            )
        if not len(self.holdout):
            raise FederationError(
                f"site '{self.site}' holds out no images to evaluate on: set data.site_holdout above 0"
            )
        self._take_up(config)
        given = ARRIVALS.decode(parameters, self.run.spec)
        assert isinstance(given, Weights)
        model = self.model(given)
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

    def _let_through(self, payload: Payload, record: str) -> Payload:
        """Return of ``payload`` what the site's owner lets leave."""
        if self.review is None:
            return payload
        info = self.run.info
        return self.review.kept(payload, f"{record}-{self.site}", info, lambda: self.deadline.left)

    # ---- the one way out ------------------------------------------------------------------------------

    def release(self, phase: str, payload: Payload | None, figures: Sequence[str]) -> NDArrays:
        """Encode what leaves, and note in the site's own log what it is, when it left and how large it was."""
        compression = self.run.config.wire.compression
        payload = self._travelling(payload)
        arrays = [] if payload is None else payload.encode(compression)
        kind = payload.kind if payload else ""
        self.state.log_release(payload_line(self.server_round, phase, kind, arrays, figures))
        return arrays

    def _travelling(self, payload: Payload | None) -> Payload | None:
        """Return ``payload`` without the statistics that are the site's own."""
        if not self._local_statistics:
            return payload
        if isinstance(payload, Bundle):
            parts = {name: self._travelling(part) for name, part in payload.parts.items()}
            return Bundle({name: part for name, part in parts.items() if part is not None})
        if isinstance(payload, Weights):
            names = [name for name in payload.tensors if name in self.run.spec.names]
            return payload.only(self.run.spec.only(names))
        return payload

    def phase_named(self, name: str) -> tuple[Callable[[Any], Payload], Callable[[Run], Spec]]:
        """Return what runs a phase, and what says which payload it takes; a method around another answers for both.

        Raises
        ------
        FederationError
            If there is no such phase.
        """
        phases = phases_of(type(self))
        if name not in phases:
            raise FederationError(
                f"{type(self).__name__} has no phase '{name[:40]}', it has {', '.join(phases)}: server and device "
                "run different methods"
            )
        work: Callable[[Any], Payload] = getattr(self, phases[name].method)
        return work, phases[name].takes


@cache
def phases_of(cls: type[DeviceClient]) -> Mapping[str, Phase]:
    """Return the phases of a client class by name; a subclass's method of the same phase takes its parent's place."""
    found: dict[str, Phase] = {}
    for base in reversed(cls.__mro__):
        for value in vars(base).values():
            marked = getattr(value, "nectar_phase", None)
            if isinstance(marked, Phase):
                found[marked.name] = marked
    return found


def client_class(name: str) -> type[DeviceClient]:
    """Return the client of a method; one of Nectar's own is looked for once a process.

    Raises
    ------
    ConfigError
        If the method names something else.
    """
    return _loaded_client(name) if is_import_path(name) else _own_client(name)


@lru_cache(maxsize=64)
def _own_client(name: str) -> type[DeviceClient]:
    return _loaded_client(name)


def _loaded_client(name: str) -> type[DeviceClient]:
    method = resolve(name)
    cls = load(method.client)
    if not (isinstance(cls, type) and issubclass(cls, DeviceClient)):
        raise ConfigError(
            f"{method.client} cannot be the client of {method.name}: it must inherit client_app.device.DeviceClient"
        )
    return cls
