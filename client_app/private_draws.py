"""What a site draws for its privacy, noise and samples, and the charge that comes before.

Of the system's entropy at a site whose data are somebody's; of the run's seed where a known data set is divided, which
guarantees nothing and is said to be so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from client_app.ledger import Account
from client_app.noise import is_seeded
from common.config import Config
from common.entropy import system_normal, system_uniform
from common.errors import FederationError
from common.privacy import Event
from common.privacy.told import Told

Generator = Callable[[], torch.Generator]


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

    def uniform(self, count: int, seed: Generator, device: torch.device) -> Tensor:
        """Return numbers from (0, 1), float64 [count]."""
        self._require_charge()
        if not self.seeded:
            return system_uniform((count,)).to(device)
        return torch.rand(count, generator=seed(), device=device, dtype=torch.float64)

    def _require_charge(self) -> None:
        if self.told is None:
            raise FederationError(
                f"method={self._config.method} draws noise for which nothing was charged: its phase calls "
                "charge(...) first"
            )
