"""What sites say of their memory beside a reply: for the server's log, or a simulation's end."""

from __future__ import annotations

from logging import getLogger

from common.errors import FederationError
from common.sites import SUPERLINK, Site, engine_of
from common.specs.names import MEMORY_LOST, OTHER_ROUNDS, WENT_BACK
from strategies.exchange.replies import Upload
from strategies.members import Members

logger = getLogger("flwr")


def require_memory(members: Members, site: Site, said: str = OTHER_ROUNDS) -> None:
    """Stop a simulation one of whose devices lacks what it wrote in this very run.

    A real site may have lost its memory, and the run goes on without. A simulated device has not: it works on another
    machine of the cluster than before, and so would the others, round for round.

    Parameters
    ----------
    members : Members
        Whose work was taken, and up to which round.
    site : Site
        Who lacks its version.
    said : str
        What it refused the work with.

    Raises
    ------
    FederationError
        Naming what the machines have to share.
    """
    # By all of them: a site says itself what it is a node of.
    simulated = engine_of([*members.sites, site]) != SUPERLINK
    here = simulated and site.name in members.taken_here
    if here and said.startswith(OTHER_ROUNDS):
        raise FederationError(
            f"{site.name} lacks what it remembered of its round {members.taken[site.name]} of this run: the machines "
            "that simulate it do not share the run's record, in which that lies; name a folder that all of them share "
            "(output-dir=/shared/runs), or simulate on one machine"
        )


def tell_memory(server_round: int, upload: Upload, members: Members) -> None:
    """Log what a site says of its memory where that is not what this run's last round left.

    Parameters
    ----------
    server_round : int
        The round that is answered.
    upload : Upload
        The site's reply.
    members : Members
        The rounds of the sites' work that the server goes on from.

    Raises
    ------
    FederationError
        If that is a simulated device's, and of this run.
    """
    site, figures = upload.site.name, upload.metrics
    if MEMORY_LOST in figures:
        require_memory(members, upload.site)
        logger.warning(
            "round %d: %s no longer has what it remembered and began afresh", server_round, site
        )
    if WENT_BACK in figures:
        logger.warning(
            "round %d: %s has been at round %.0f of this run, and went back with the server to its round %d: the "
            "record is older than what the site has seen of it",
            *(server_round, site, figures[WENT_BACK], members.taken.get(site, 0)),
        )
