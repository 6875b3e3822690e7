"""What a phase draws for privacy, noise and samples, and the charge that comes before.

Of the system's entropy at a site whose data are somebody's; of the run's seed where a known data set is divided, which
guarantees nothing and is said to be so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from client_app import membership
from client_app.noise import is_seeded
from client_app.site_round import SiteRound
from common.draws.row_draws import SeededRows, SystemRows, example_hashes
from common.draws.seeding import derive
from common.errors import FederationError
from common.learning.run import Run
from common.privacy.events import Event
from common.privacy.told import Told
from common.samples.inputs import Samples
from synth.private_release import Gaussian
from synth.row_draws import RowDraws

Rows = Callable[[int, Tensor], RowDraws]
"""(step, positions of examples in a pool) -> what these draw in the step, each example by itself."""


@dataclass(frozen=True)
class Draws:
    """A client's draws in one round; ``DeviceClient.draws`` makes them.

    ``seeds`` gives the generator for a purpose, of the run's seed. ``mechanism`` is how clipped sums are released.
    """

    run: Run
    site: str
    own_data: bool
    samples: Samples
    seeds: Callable[[str], torch.Generator]
    round: SiteRound
    mechanism: type[Gaussian] = Gaussian

    def charge(self, *events: Event, resumable: bool = False) -> None:
        """Enter what is about to be released into the site's ledger, which is on disk before any noise is drawn.

        A site that is killed after this has counted a release too many, never one too few; a round that is repeated
        is charged again. In a simulation, and where noise is the seed's, the charge stands in the run's record alone.

        Parameters
        ----------
        events : Event
            All that this phase is going to draw noise for.
        resumable : bool
            Whether the next round goes on with steps for which there is no time, and is not charged again.

        Raises
        ------
        FederationError
            If the site's own budget does not allow it, it keeps no ledger, or its ledger cannot be relied on; if the
            steps would take longer than the round's time that is left, by a step on made-up rows; or if the site has
            data of its own, and the run asks it for seeded noise.
        """
        at, config = self.round, self.run.config
        # Events say how many examples the site has: their sampling rate is a batch over that number.
        tell = not at.private or config.privacy.counts == "public"
        before = () if at.charged.told is None else at.charged.told.events
        account = at.charged.account
        at.charged.steps += 1 if resumable else sum(event.steps for event in events)
        if self.seeded:
            at.charged.told = Told((*before, *events), seeded=True)
        elif account is None:
            at.charged.told = Told((*before, *events))
        else:
            if events:
                self._require_time()
            lines, mine = account.charge(events, at.number, at.phase, config.section)
            at.charged.told = Told(mine if tell else (), whole=True, head=lines.head)

    def _require_time(self) -> None:
        """Refuse a phase that cannot end in time, before the first of its charges: none is ever given back."""
        at = self.round
        at.deadline.check()
        estimate = at.charged.estimate
        if estimate is None or at.charged.told is not None or math.isinf(at.deadline.left):
            return
        if (seconds := estimate()) > (left := at.deadline.left):
            raise FederationError(
                f"the round's time is too short for this phase (estimated {seconds:.3g} s, left {left:.3g} s), and "
                "nothing was charged: raise federation.round_deadline, or ask for fewer steps"
            )

    @property
    def told(self) -> Told | None:
        """What goes along with this phase's reply about its charges; None where there were none."""
        return self.round.charged.told

    @property
    def seeded(self) -> bool:
        """Whether what privacy rests on is drawn from the run's seed, which guarantees nothing.

        FederationError if the run asks a site with data of its own for that.
        """
        return is_seeded(self.run.config, self.own_data)

    def gaussian(self, purpose: str, noise_multiplier: float, clip: float) -> Gaussian:
        """Return the Gaussian mechanism for sums of contributions no longer than ``clip``, other noise each time.

        It is said beside the result where the noise is the seed's.

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
                return self.round.stream.normal(shape)
            seeds = self.seeds(f"{purpose} {next(passes)}")
            return torch.randn(tuple(shape), generator=seeds, device=self.run.device)

        return self.mechanism(noise_multiplier, clip, normal)

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
            As a release by `gaussian` does.
        """
        device = self.run.device
        if not self._seeded_and_charged():
            return lambda step, positions: SystemRows(len(positions), device)
        seed = self.seeds(purpose).initial_seed()
        hashes = example_hashes(self.samples if pool is None else pool)
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
        account = self.round.charged.account
        directory = None if account is None else account.directory
        key = membership.key_of(
            self.run, self.site, directory, seeded=account is None or self.seeded
        )
        positions = membership.chosen(self.samples, key, purpose, share)
        return torch.from_numpy(positions).to(self.run.device)

    def _seeded_and_charged(self) -> bool:
        """Return ``seeded``, which is said beside the result, and refuse draws that nothing was charged for."""
        if self.told is None:
            raise FederationError(
                f"method={self.run.config.method} draws noise for which nothing was charged: its phase calls "
                "draws.charge(...) first"
            )
        if self.seeded:
            self.round.tell({"seeded_noise": 1})
        return self.seeded
