"""A real site's account of its privacy: its ledger, and the budget that its owner sets. Nothing is released before it.

A simulation keeps none: its charges travel to the run's record.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path

from client_app.owner.node_config import NodeConfig
from common.config.resolved import Config
from common.errors import FederationError
from common.privacy.accounting import costs_at_most, epsilon
from common.privacy.events import Event
from common.privacy.ledger import Charge, Ledger, LedgerError, LedgerTip, Lines

logger = getLogger("flwr")

EPSILON, DELTA = "privacy-epsilon", "privacy-delta"
"""The node config's keys of a budget."""

#: the delta of a budget whose owner names none
_DELTA = 1e-5

NO_BUDGET = "its privacy budget does not allow this"
"""All that a server learns of a budget; how much of it is left, it does not."""


@dataclass(frozen=True)
class Budget:
    """The most that all runs together may cost a site's examples."""

    epsilon: float
    delta: float = _DELTA

    @classmethod
    def of(cls, node: NodeConfig) -> Budget | None:
        """Read a node config's; None if the owner bounds nothing; FederationError if delta has no epsilon."""
        most, delta = node.privacy_epsilon, node.privacy_delta
        if most is None and delta is not None:
            raise FederationError(
                f"the node config says {DELTA}={delta:g} and no {EPSILON}, so that it bounds nothing: name both"
            )
        return None if most is None else cls(most, _DELTA if delta is None else delta)

    def check_settings(self, config: Config) -> None:
        """Refuse a run that sends what no mechanism covers, which no budget bounds, with a FederationError."""
        if not config.private:
            raise FederationError(
                f"this site's owner sets a privacy budget ({EPSILON}), and the run (method={config.method}) sends what "
                "no differential privacy covers: choose a method that is private throughout, or run without this site"
            )

    def allows(self, events: Sequence[Event]) -> bool:
        """Return whether that much is within the budget."""
        return costs_at_most(self.epsilon, events, self.delta)


@dataclass(frozen=True)
class Account:
    """What a real site charges in one run.

    Parameters
    ----------
    directory : Path, optional
        The site's state directory; None if its owner names none: then nothing private can be asked of it.
    data : str
        Which data the charges are of, for the owner to read. The ledger adds up whatever they are: examples that lie
        in two folders are released twice.
    """

    directory: Path | None
    budget: Budget | None
    site: str
    record: str
    data: str

    def charge(
        self, events: Sequence[Event], server_round: int, phase: str, method: str
    ) -> tuple[Lines, tuple[Event, ...]]:
        """Write what is about to be released, and return the ledger and all of this site's own events in this run.

        Raises
        ------
        FederationError
            If the budget does not allow it, or the ledger cannot be relied on: nothing may be released then.
        """
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        charge = Charge(
            *(now, self.site, self.record, server_round, phase, method, self.data, tuple(events))
        )
        lines = self._ledger().append(charge, lambda before: self._require(before, events))
        if others := {each.site for each in lines.charges} - {self.site}:
            logger.warning(
                "the privacy ledger has charges of %s too, which count for %s's budget: give each site a state-dir of "
                "its own",
                *(", ".join(sorted(others)), self.site),
            )
        mine = [e for e in lines.charges if (e.record, e.site) == (self.record, self.site)]
        return lines, tuple(event for each in mine for event in each.events)

    def _require(self, before: Sequence[Charge], events: Sequence[Event]) -> None:
        spent = [event for charge in before for event in charge.events]
        if self.budget is not None and not self.budget.allows([*spent, *events]):
            most, delta = self.budget.epsilon, self.budget.delta
            logger.error(
                "the privacy budget (epsilon %g at delta %g) does not allow what the run asks for: it would bring the "
                "ledger from epsilon %.3g to %.3g",
                *(most, delta),
                *(epsilon(each, delta).value for each in (spent, [*spent, *events])),
            )
            raise FederationError(NO_BUDGET)

    def check(self, seen: LedgerTip | None) -> None:
        """Refuse an older ledger than the server has seen, or one not to be relied on, with a LedgerError."""
        if seen is None or seen == LedgerTip():
            return
        ledger = self._ledger()
        lines = ledger.read()
        if not lines.has(seen):
            error = LedgerError(
                f"the privacy ledger {ledger.path} has {lines.head.length} lines, and the server has seen one of this "
                f"site with {seen.length} that it does not continue: put back the newest copy of both of its files"
            )
            error.told = "this site's privacy ledger is older than the one that the server has seen"
            raise error

    def _ledger(self) -> Ledger:
        if self.directory is None:
            raise FederationError(
                "this site keeps no privacy ledger, for which its owner names a state-dir in the node config: name "
                "one, choose a method without differential privacy, or run without this site"
            )
        return Ledger(self.directory)
