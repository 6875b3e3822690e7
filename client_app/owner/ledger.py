"""A real site's account of its privacy: its ledger, and the budget that its owner sets. Nothing is released before it.

A simulation keeps none: its charges travel to the run's record.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from logging import getLogger

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


def check_budget(node: NodeConfig) -> None:
    """Refuse a node config whose budget bounds nothing, or has no ledger, with a FederationError."""
    if node.privacy_epsilon is None and node.privacy_delta is not None:
        raise FederationError(
            f"the node config says {DELTA}={node.privacy_delta:g} and no {EPSILON}, so that it bounds nothing: name "
            "both"
        )
    if node.privacy_epsilon is not None and node.state_dir is None:
        raise FederationError(
            f"the node config sets a privacy budget ({EPSILON}) and names no state-dir, which holds its ledger: "
            "name one"
        )


def check_covered(node: NodeConfig, config: Config) -> None:
    """Refuse a run that sends what no mechanism covers, which no budget bounds, with a FederationError."""
    if node.privacy_epsilon is not None and not config.private:
        raise FederationError(
            f"this site's owner sets a privacy budget ({EPSILON}), and the run (method={config.method}) sends what no "
            "differential privacy covers: choose a method that is private throughout, or run without this site"
        )


@dataclass(frozen=True)
class Account:
    """What a real site charges in one run: nothing private can be asked of it if its owner names no state directory.

    Parameters
    ----------
    data : str
        Which data the charges are of, for the owner to read. The ledger adds up whatever they are: examples that lie
        in two folders are released twice.
    """

    node: NodeConfig
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
        most, delta = self.node.privacy_epsilon, self.node.privacy_delta or _DELTA
        if most is not None and not costs_at_most(most, [*spent, *events], delta):
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
            error.reported = "this site's privacy ledger is older than one that the server has seen"
            raise error

    def _ledger(self) -> Ledger:
        if self.node.state_dir is None:
            raise FederationError(
                "this site keeps no privacy ledger, for which its owner names a state-dir in the node config: name "
                "one, choose a method without differential privacy, or run without this site"
            )
        return Ledger(self.node.state_dir)
