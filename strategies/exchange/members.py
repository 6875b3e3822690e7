"""Who takes part in a run, and what became of a round's replies: one for a method and the methods inside it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from logging import getLogger

from common.errors import FederationError
from common.sites import SUPERLINK, Site, engine_of
from common.specs.updates import DATA, EXCEPTION, MEMORY_LOST, OTHER_DATA, OTHER_ROUNDS, WENT_BACK
from strategies.exchange.evaluation import EvaluationRequest
from strategies.exchange.judging import LengthHistory
from strategies.exchange.replies import Outcome, PrivacyBudgetUsage, Upload, reasons_in_words

logger = getLogger("flwr")


@dataclass
class Members:
    """The sites of a run.

    Parameters
    ----------
    counted_on : int
        The number of sites that the operator counts on.
    sites : list of Site
        Those that are there, in site order.
    refused : set of int
        The nodes that the roll call refused.
    left_out : mapping of int to str
        Why nodes that were there at the beginning take no part.
    were_there : set of str
        The names of all sites that have been there.
    outcome : Outcome
        What became of the round's replies.
    evaluation : EvaluationRequest or None
        Who was asked about a round's weights, until the next ones are.
    last_accepted_round : dict of str to int
        The last round of which each site's work was accepted: its memory goes on from there.
    accepted_this_process : set of str
        The sites whose work this process accepted: what they remember of it they wrote since it began.
    spending : PrivacyBudgetUsage
        What the sites were charged for their privacy, and the heads of their ledgers.
    lengths : LengthHistory
        How long the updates of earlier rounds were.
    data : mapping of str to str
        The checksums of the data that the run began with: of a simulated site's folder by its name, else of "".
    """

    counted_on: int
    sites: list[Site] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)
    left_out: Mapping[int, str] = field(default_factory=dict)
    were_there: set[str] = field(default_factory=set)
    outcome: Outcome = field(default_factory=Outcome)
    evaluation: EvaluationRequest | None = None
    last_accepted_round: dict[str, int] = field(default_factory=dict)
    accepted_this_process: set[str] = field(default_factory=set)
    spending: PrivacyBudgetUsage = field(default_factory=PrivacyBudgetUsage)
    lengths: LengthHistory = field(default_factory=LengthHistory)
    data: Mapping[str, str] = field(default_factory=dict)

    @property
    def began(self) -> dict[str, str]:
        """What an instruction says of the data that the run began with: nothing where each site has its own."""
        divided = [*self.data] == [""] and any(site.data for site in self.sites[:1])
        return {DATA: self.data[""][:16]} if divided else {}

    def check_memory(self, site: Site, said: str = OTHER_ROUNDS) -> None:
        """Stop a simulation one of whose devices lacks what it wrote in this very run, or reads other data.

        A real site may have lost its memory, and the run goes on without. A simulated device has not: it works on
        another machine of the cluster than before, and so would the others, round for round.
        """
        # By all of them: a site says itself what it is a node of.
        simulated = engine_of([*self.sites, site]) != SUPERLINK
        if simulated and said.startswith(OTHER_DATA):
            raise FederationError(said)
        if simulated and site.name in self.accepted_this_process and said.startswith(OTHER_ROUNDS):
            raise FederationError(
                f"{site.name} lacks what it remembered of its round {self.last_accepted_round[site.name]} of this run: "
                "the machines that simulate it do not share the run's record, in which that lies; name a folder that "
                "all of them share (output-dir=/shared/runs), or simulate on one machine"
            )

    def note_alike(self, what: str, failed: Mapping[str, str], well: Collection[str]) -> None:
        """Log how many sites failed alike, if any did; stop a simulation all of whose sites raised the same error.

        A further round would raise it again. Over real machines what sites send stops no run.
        """
        if len(reasons := {*failed.values()}) < len(failed):
            logger.warning("%s: rejected %s", what, reasons_in_words(failed))
        raised = len(reasons) == 1 and all(why.startswith(EXCEPTION) for why in reasons)
        if raised and not well and engine_of(self.sites) != SUPERLINK:
            raise FederationError(f"{what}: all {len(failed)} sites failed alike, {reasons.pop()}")

    def log_memory_loss(self, server_round: int, upload: Upload) -> None:
        """Log what a site says of its memory where that is not what this run's last round left."""
        site, figures = upload.site.name, upload.metrics
        if MEMORY_LOST in figures:
            self.check_memory(upload.site)
            logger.warning(
                "round %d: %s no longer has what it remembered and began afresh", server_round, site
            )
        if WENT_BACK in figures:
            logger.warning(
                "round %d: %s has been at round %.0f of this run, and went back with the server to its round %d: the "
                "record is older than what the site has seen of it",
                *(server_round, site, figures[WENT_BACK], self.last_accepted_round.get(site, 0)),
            )
