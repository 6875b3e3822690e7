"""What one instruction at a site may draw, remember and be charged: draws for privacy, the charge before them.

A site with its own data draws from the system's entropy. Where a known data set is divided, draws come from the run's
seed, which guarantees nothing, and the record says so.
"""

from __future__ import annotations

import math
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from client_app.owner.ledger import Account
from client_app.state import DeviceState, Slots, Tensors, names_of, slots_of
from common.config.resolved import Config
from common.data.division.stratify import Indices
from common.division import Division
from common.draws.private_draws import (
    KeyStream,
    SeededRows,
    SystemRows,
    Words,
    example_hashes,
    keyed_digests,
    keyed_hashes,
)
from common.draws.seeding import derive
from common.errors import FederationError
from common.learning.run import Run
from common.privacy.events import Event
from common.privacy.ledger import PrivacyReport
from common.samples.dataset import Dataset
from common.samples.inputs import Samples, samples
from common.settings.sections import is_user_data
from common.specs.updates import MEMORY_LOST, OTHER_ROUNDS, SECONDS_LEFT, WENT_BACK
from synth.private_release import Gaussian
from synth.row_draws import RowDraws

if TYPE_CHECKING:
    from client_app.device import DeviceClient

logger = getLogger("flwr")

Rows = Callable[[int, Tensor], RowDraws]
"""(step, positions of examples in a pool) -> what these draw in the step, each example by itself."""


class Deadline:
    """The end of the round's time, by this machine's own clock from when the instruction was taken up.

    Parameters
    ----------
    seconds : float
        What is left; infinity for no deadline.

    Attributes
    ----------
    steps : int
        How many steps the phase takes, as far as is known before the first.
    """

    def __init__(self, seconds: float = math.inf, of: str = "round") -> None:
        self.steps, self._seconds, self._of = 0, seconds, of
        self._end = time.monotonic() + seconds

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Deadline:
        """Return the deadline that an instruction's configuration names; none where it names none."""
        return cls(float(config.get(SECONDS_LEFT, math.inf)))

    @property
    def left(self) -> float:
        """The seconds that are left, at least 0; infinity if there is no deadline."""
        return max(0.0, self._end - time.monotonic())

    def check(self) -> None:
        """Raise FederationError if the time is over; asked between two steps, it costs a look at the clock."""
        if time.monotonic() > self._end:
            raise FederationError(f"ran out of the {self._of}'s time ({self._seconds:.0f} s)")


@dataclass
class SiteRound:
    """One instruction at a site, for the client that works on it and those inside that one.

    What the site remembers is read as of the round whose work the server last took, and written once, at the end.

    Attributes
    ----------
    state : DeviceState
        The store of what the site remembers.
    account : Account or None
        A real site's ledger and budget; None in a simulation.
    private : bool
        Whether what is computed from private data stays, unless it went through a mechanism.
    number : int
        The round; 0 before any instruction.
    taken : int, optional
        The round of the site's work that the server last took; 0 for none, None where it does not say.
    charged : PrivacyReport or None
        The report on the phase's charges for the server; None while nothing was charged.
    estimate : callable, optional
        Returns how long the phase would take, in seconds.
    figures : dict of str to float
        What goes along with the reply.
    written : dict of str to tensors by name
        What the site remembers from this round on; a slot that is not written is unchanged.
    stream : KeyStream
        Where the round's noise comes from, unless it is the seed's.
    """

    state: DeviceState
    site: str
    account: Account | None
    private: bool
    number: int = 0
    phase: str = ""
    taken: int | None = 0
    deadline: Deadline = field(default_factory=Deadline)
    charged: PrivacyReport | None = None
    estimate: Callable[[], float] | None = None
    figures: dict[str, float] = field(default_factory=dict)
    written: dict[str, Tensors] = field(default_factory=dict)
    stream: KeyStream = field(default_factory=KeyStream)

    def recall(self, slot: str) -> Tensors | None:
        """Return what is in ``slot``; see `DeviceClient.recall`. FederationError if no server says of which round."""
        if self.taken is None:
            raise FederationError(
                "the site judges by what it remembers, and the server does not say of which round: the method's "
                "strategy has to set judged_from_memory = True"
            )
        return self.remembered.get(slot)

    @cached_property
    def rounds(self) -> list[int]:
        """The rounds of which the site has a version."""
        return self.state.rounds(self.taken or 0)

    @cached_property
    def remembered(self) -> Slots:
        """What the site remembered by slot; FederationError if it remembers other rounds than the server means."""
        rounds, taken = self.rounds, self.taken or 0
        if taken in rounds or not taken:
            self._say_if_gone_back(rounds, taken)
        if taken in rounds:
            return slots_of(self.state.load(taken))
        if taken and rounds:
            raise FederationError(
                f"{OTHER_ROUNDS}{', '.join(map(str, rounds))}, and the server continues from its round {taken}: "
                "restore the record or the site's state of the same time, or delete this run's state there to let it "
                "start afresh"
            )
        if taken:
            logger.info("%s no longer has what it remembered and begins afresh", self.site)
            self.figures[MEMORY_LOST] = 1.0
        return {}

    def _say_if_gone_back(self, rounds: Sequence[int], taken: int) -> None:
        """Log that the server continues from an earlier round than it has named before: an older record."""
        before = 0
        # The requested version may be intact where a later one is not.
        with suppress(FederationError):
            newest = rounds[-1] if rounds else 0
            before = self.state.base_of(newest) if newest > taken else 0
        if before > taken:
            logger.info("%s goes back from round %d to %d", self.site, before, taken)
            self.figures[WENT_BACK] = float(before)

    def require_memory(self) -> None:
        """Refuse a round whose version cannot be read, or whose release could not be logged: FederationError."""
        if self.rounds:
            _ = self.remembered
        self.state.log_release()

    def end(self) -> None:
        """Write what is remembered, where there is anything, also where nothing is new: the next round names this."""
        if self.written or "remembered" in vars(self) or self.rounds:
            tensors = names_of({**self.remembered, **self.written})
            self.state.save(self.number, tensors, self.taken or 0, self.rounds)


@dataclass(frozen=True)
class Draws:
    """A client's draws in one round; ``DeviceClient.draws`` makes them."""

    client: DeviceClient

    def charge(self, *events: Event, resumable: bool = False) -> None:
        """Enter what is about to be released into the site's ledger, which is on disk before any noise is drawn.

        A site that is killed after this has counted a release too many, never one too few; a round that is repeated
        is charged again. In a simulation, and where noise is the seed's, the charge is in the run's record alone.

        Parameters
        ----------
        events : Event
            All that this phase is going to draw noise for.
        resumable : bool
            Whether the next round continues with the steps that did not fit into this one, and is not charged again.

        Raises
        ------
        FederationError
            If the site's own budget does not allow it, it keeps no ledger, or its ledger cannot be relied on; if the
            steps would take longer than the round's time that is left, by a step on made-up rows; or if the site has
            its own data, and the run requests seeded noise.
        """
        at, config = self.client.round, self.client.run.config
        before = () if at.charged is None else at.charged.events
        at.deadline.steps += 1 if resumable else sum(event.steps for event in events)
        if self.seeded or at.account is None:
            at.charged = PrivacyReport((*before, *events), seeded=self.seeded)
            return
        if events:
            at.require_memory()
            self._require_time()
        lines, mine = at.account.charge(events, at.number, at.phase, config.section)
        # Events reveal how many examples the site has: their sampling rate is a batch over that number.
        reports = not at.private or config.privacy.counts == "public"
        at.charged = PrivacyReport(mine if reports else (), complete=True, head=lines.head)

    def _require_time(self) -> None:
        """Refuse a phase that cannot end in time, before the first of its charges: none is ever given back."""
        at = self.client.round
        at.deadline.check()
        if at.estimate is None or at.charged is not None or math.isinf(at.deadline.left):
            return
        if (seconds := at.estimate()) > (left := at.deadline.left):
            raise FederationError(
                f"the round's time is too short for this phase (estimated {seconds:.3g} s, left {left:.3g} s), and "
                "nothing was charged: raise federation.round_deadline, or ask for fewer steps"
            )

    @property
    def seeded(self) -> bool:
        """Whether what privacy rests on is drawn from the run's seed, which guarantees nothing.

        FederationError if the run requests it from a site with its own data.
        """
        return is_seeded(self.client.run.config, self.client.user_data)

    def gaussian(self, purpose: str, noise_multiplier: float, clip: float) -> Gaussian:
        """Return the Gaussian mechanism for sums of contributions no longer than ``clip``, other noise each time.

        A figure of the reply states it if the noise is the seed's.

        Parameters
        ----------
        purpose : str
            What it is for. Seeded, a purpose gives the same noise each time that it is named in a round.
        noise_multiplier : float
            sigma, the noise's standard deviation over ``clip``.

        Raises
        ------
        FederationError
            At the first release: if nothing was charged for it, or the site has data of its own, and the run asks it
            for seeded noise.
        """
        passes = count()

        def normal(shape: Sequence[int]) -> Tensor:
            if not self._seeded_and_charged():
                return self.client.round.stream.normal(shape)
            seeds = self.client.generator(f"{purpose} {next(passes)}")
            return torch.randn(tuple(shape), generator=seeds, device=self.client.run.device)

        return self.client.mechanism(noise_multiplier, clip, normal)

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
            As a release by `gaussian` does.
        """
        of = self.client.samples if pool is None else pool
        every = torch.arange(len(of), device=self.client.run.device)
        return (self.rows(purpose, of)(0, every).uniform() < rate).nonzero().flatten()

    def rows(self, purpose: str, pool: Samples | None = None) -> Rows:
        """Return what gives examples random numbers inside a private step, each example its own.

        What is drawn for an example there (its augmentation, a layer's dropout, a code's noise) must change with no
        other example's presence or place: else one more example changes all contributions.

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
            As a release by `gaussian` does.
        """
        device = self.client.run.device
        if not self._seeded_and_charged():
            return lambda step, positions: SystemRows(len(positions), device)
        seed = self.client.generator(purpose).initial_seed()
        hashes = example_hashes(self.client.samples if pool is None else pool)
        return lambda step, positions: SeededRows(
            derive(seed, step), hashes[positions.cpu().numpy()], device
        )

    def chosen(self, purpose: str, share: float) -> Tensor:
        """Return the positions of examples that are used for ``purpose``, each chosen by itself with this chance.

        They are the same in every round and process, and one example more changes whether no other is among them: what
        a private step may train on. How many there are is private.

        Raises
        ------
        FederationError
            If the site cannot keep the key by which they are chosen.
        """
        client, account = self.client, self.client.round.account
        directory = None if account is None else account.node.state_dir
        seeded = account is None or self.seeded
        key = key_of(client.run, client.drawn_as, directory, seeded=seeded)
        positions = chosen(client.samples, key, purpose, share)
        return torch.from_numpy(positions).to(client.run.device)

    def _seeded_and_charged(self) -> bool:
        """Return ``seeded``, which a figure of the reply states, and refuse draws that nothing was charged for."""
        if self.client.round.charged is None:
            raise FederationError(
                f"method={self.client.run.config.method} draws noise for which nothing was charged: its phase calls "
                "draws.charge(...) first"
            )
        if self.seeded:
            self.client.tell(seeded_noise=1)
        return self.seeded


# ---- membership ----------------------------------------------------------------------------------
# Which examples a private run uses for what: a keyed hash of an example's bytes decides it, for that example alone.
#
# A random order of a site's examples would not do: one more changes which of the others are chosen, and with that
# what each of them contributes. So how many are chosen is a matter of chance too, and a class can lose its last
# example.

KEY = "membership-key"
"""The file in a site's state directory; with it and an example one can compute what the example is chosen for."""

_BYTES = 32


def key_of(run: Run, site: str, directory: Path | None, *, seeded: bool) -> bytes:
    """Return the key of a site, made once, so that the next round and other processes choose alike.

    Parameters
    ----------
    seeded : bool
        Whether the site is simulated, where the run's seed gives the key.

    Raises
    ------
    FederationError
        If the site has no state directory, or the key cannot be kept there.
    """
    if seeded:
        return derive(run.config.seed, "membership", site).to_bytes(8, "big")
    if directory is None:
        raise FederationError(
            "a private run chooses examples by a key that the site keeps, and this site's node config names no "
            "state-dir: name one"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return _kept(directory / KEY)
    except OSError as error:
        raise FederationError(
            f"the site's {KEY} cannot be kept in its state-dir ({error.strerror}): free some space there"
        ) from None


def _kept(path: Path) -> bytes:
    """Return the key in ``path``; the first process to come writes it, atomically."""
    if not path.exists():
        descriptor, name = tempfile.mkstemp(prefix=f".{KEY}-", dir=path.parent)  # of mode 600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(_BYTES))
                file.flush()
                os.fsync(file.fileno())
            os.link(name, path)  # unlike a rename it keeps the key of the first process
        except FileExistsError:
            pass
        finally:
            Path(name).unlink()
    key = path.read_bytes()
    if len(key) != _BYTES:
        raise FederationError(
            f"the site's {KEY} has {len(key)} bytes and not {_BYTES}: put back a copy of it, or delete it, and other "
            "examples are chosen from then on"
        )
    return key


def chosen(pool: Samples, key: bytes, purpose: str, share: float) -> Indices:
    """Return the positions of those of the examples that ``share`` of all there could be are chosen like, ascending.

    Parameters
    ----------
    purpose : str
        What they are chosen for; each purpose chooses by itself.
    share : float
        The chance of each, from 0 to 1.
    """
    if share >= 1:
        return np.arange(len(pool))
    return _below(keyed_hashes(pool, key + purpose.encode()), share)


def _below(hashes: Words, share: float) -> Indices:
    return np.flatnonzero((hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53 < share)


def divided(
    division: Division, site: str, dataset: Dataset, indices: Indices, key: bytes
) -> tuple[Indices, Indices]:
    """Return of a site's positions in ``dataset``'s training split those to learn from and those it holds out.

    Parameters
    ----------
    division : Division
        The run's; one that is not private draws them by its seed, the classes in proportion.
    indices : int64 array
        Which of them are its.
    key : bytes
        The site's, for a private run.
    """
    config = division.config
    share = config.data.site_holdout
    if not (config.private and share):
        return division.share(site, dataset, indices)
    groups = division.groups(dataset, indices)
    if groups is None:
        pool = samples(dataset.train, division.run.info, indices)
        held = chosen(pool, key, "site-holdout", share)
    else:  # all of a group or nothing of it, as its own name says
        names = (group.tobytes() for group in groups)
        held = _below(keyed_digests(names, key + b"site-holdout"), share)
    return np.delete(indices, held), indices[held]


# ---- noise ---------------------------------------------------------------------------------------
# Whether a site draws its noise from the run's seed: only where no privacy depends on it.


def refuse_seeded(config: Config, user_data: bool) -> None:
    """Refuse noise that the seed gives away, at a site with its own data: a FederationError."""
    if user_data and config.privacy.noise == "seeded":
        raise FederationError(
            "this site has its own data and draws noise only from its system's entropy, and the run requests "
            "privacy.noise=seeded: choose auto or system, or run without this site"
        )


def is_seeded(config: Config, user_data: bool) -> bool:
    """Return whether a site's noise comes from the run's seed.

    Parameters
    ----------
    user_data : bool
        Whether the site has its own data; if not, it holds a partition of the run's data set.

    Raises
    ------
    FederationError
        If the run requests it from a site with its own data.
    """
    refuse_seeded(config, user_data)
    asked = config.privacy.noise
    return asked == "seeded" or (
        asked == "auto" and not user_data and not is_user_data(config.dataset)
    )
