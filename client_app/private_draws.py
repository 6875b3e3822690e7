"""What a site draws for its privacy, noise and samples, and the charge that comes before.

Of the system's entropy at a site whose data are somebody's; of the run's seed where a known data set is divided, which
guarantees nothing and is said to be so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from client_app.membership import key_of
from client_app.noise import is_seeded
from client_app.owner.ledger import Account
from common.config.resolved import Config
from common.draws.entropy import system_normal
from common.draws.row_draws import SeededRows, SystemRows, example_hashes
from common.draws.seeding import derive
from common.errors import FederationError
from common.learning.run import Run
from common.privacy.events import Event
from common.privacy.told import Told
from common.samples.inputs import Samples
from synth.private_release import Gaussian
from synth.row_draws import RowDraws

Generator = Callable[[], torch.Generator]

Normal = Callable[[Sequence[int]], Tensor]

Rows = Callable[[int, Tensor], RowDraws]
"""(step, positions of examples in a pool) -> what these draw in the step, each example by itself."""


class PrivateDraws:
    """A client's, which it shares with the clients inside it.

    Parameters
    ----------
    config : Config
        The run's.
    own_data : bool
        Whether the site has data of its own.
    account : Account, optional
        A real site's ledger and budget; None in a simulation.

    Attributes
    ----------
    told : Told or None
        What the server is told of this phase's charges; None while there are none.
    """

    def __init__(self, config: Config, own_data: bool, account: Account | None) -> None:
        self._config, self._own_data, self._account = config, own_data, account
        self.told: Told | None = None

    @property
    def seeded(self) -> bool:
        """Whether the run's seed gives them; FederationError if the run asks a site with data of its own for that."""
        return is_seeded(self._config, self._own_data)

    def charge(
        self, events: Sequence[Event], server_round: int, phase: str, method: str, *, tell: bool
    ) -> None:
        """Enter ``events`` into the ledger; with ``tell`` the server learns which they are.

        Raises
        ------
        FederationError
            If nothing may be released: see `DeviceClient.charge`.
        """
        before = () if self.told is None else self.told.events
        if self.seeded:
            self.told = Told((*before, *events), seeded=True)
        elif self._account is None:
            self.told = Told((*before, *events))
        else:
            lines, mine = self._account.charge(events, server_round, phase, method)
            self.told = Told(mine if tell else (), whole=True, head=lines.head)

    def normal(self, shape: Sequence[int], seed: Generator, device: torch.device) -> Tensor:
        """Return standard normal noise, float32; ``seed`` gives the generator where it is the seed's."""
        self._require_charge()
        if not self.seeded:
            return system_normal(shape).to(device)
        return torch.randn(tuple(shape), generator=seed(), device=device)

    def gaussian(self, noise_multiplier: float, clip: float, normal: Normal) -> Gaussian:
        """Return the mechanism by which a clipped sum is released."""
        return Gaussian(noise_multiplier, clip, normal)

    def rows(self, pool: Samples, seed: int, device: torch.device) -> Rows:
        """Return what gives examples of ``pool`` draws of their own; ``seed`` enters where they are the seed's."""
        self._require_charge()
        if not self.seeded:
            return lambda step, positions: SystemRows(len(positions), device)
        hashes = example_hashes(pool)
        return lambda step, positions: SeededRows(
            derive(seed, step), hashes[positions.cpu().numpy()], device
        )

    def membership_key(self, run: Run, site: str) -> bytes:
        """Return the key by which the site's examples are chosen for what they are used for."""
        directory = None if self._account is None else self._account.directory
        seeded = self._account is None or self.seeded
        return key_of(run, site, directory, seeded=seeded)

    def _require_charge(self) -> None:
        if self.told is None:
            raise FederationError(
                f"method={self._config.method} draws noise for which nothing was charged: its phase calls "
                "charge(...) first"
            )
