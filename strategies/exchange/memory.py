"""What sites say of their memory beside a reply, for the server's log."""

from __future__ import annotations

from logging import getLogger

from common.memory import MEMORY_LOST, WENT_BACK
from strategies.exchange.replies import Upload

logger = getLogger("flwr")


def tell_memory(server_round: int, upload: Upload, taken: int) -> None:
    """Log what a site says of its memory where that is not what this run's last round left.

    Parameters
    ----------
    server_round : int
        The round that is answered.
    upload : Upload
        The site's reply.
    taken : int
        The round of the site's work that the server goes on from.
    """
    site, figures = upload.site.name, upload.metrics
    if MEMORY_LOST in figures:
        logger.warning(
            "round %d: %s no longer has what it remembered and began afresh", server_round, site
        )
    if WENT_BACK in figures:
        logger.warning(
            "round %d: %s has been at round %.0f of this run, and went back with the server to its round %d: the "
            "record is older than what the site has seen of it",
            *(server_round, site, figures[WENT_BACK], taken),
        )
