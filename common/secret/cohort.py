"""Who adds up a secret sum: how many open it, and the names by which both sides know what an exchange carries."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection

from common.settings.sections import FederationSettings

WITHSTANDS = (
    "a secret sum after Bonawitz et al. (2017): the server that follows the protocol, with at most {colluders} of the "
    "sites on its side, learns the total of {threshold} sites or more, or nothing; a server that lies about who is "
    "there, or that replaces keys, is not withstood"
)
"""What it protects against, to be said wherever it is spoken of."""

LEAST = 3
"""Sites without which there is no sum."""

MOST = 1000
"""Sites of one sum at most: the shares of more than these no longer fit in a reply."""

#: the record of a message, and the queries of the exchanges that train nothing
RECORD = "secret"
KEYS, SHARES, OPENING = "secret_keys", "secret_shares", "secret_opening"

#: what is in the record
ATTEMPT, NEXT, ASKED, THRESHOLD = "attempt", "next", "asked", "threshold"
NAMES, SEAL_KEYS, MASK_KEYS, RENEW = "names", "seal-keys", "mask-keys", "renew"
SEAL_KEY, MASK_KEY, COMMITMENT, SEALED, OPENED = (
    "seal-key",
    "mask-key",
    "commitment",
    "sealed",
    "opened",
)


def threshold(sites: int, colluders: int) -> int:
    """Return how many of so many ``sites`` open a sum, of whom ``colluders`` may be on the server's side.

    Two lists of survivors, given to different sites, would need twice as many: more than half of the sites and the
    colluders, who answer both.
    """
    return max(LEAST, (sites + colluders) // 2 + 1, -(-2 * sites // 3))


def colluders_of(federation: FederationSettings, sites: int) -> int:
    """Return how many of ``sites`` are withstood in addition to the server: as many as set, or a third."""
    return federation.secret_colluders if federation.secret_colluders >= 0 else sites // 3


def threshold_of(federation: FederationSettings, sites: int) -> int:
    """Return a run's threshold for so many ``sites``: that of those it counts on, if these are more."""
    most = max(sites, federation.asked)
    return threshold(most, colluders_of(federation, most))


def stated(federation: FederationSettings) -> str:
    """Return what a run's sums protect against, in a sentence."""
    asked = federation.asked
    colluders = colluders_of(federation, asked)
    return WITHSTANDS.format(colluders=colluders, threshold=threshold_of(federation, asked))


def shares_of(federation: FederationSettings) -> int:
    """Return how many shares make the noise of a run: the smallest number of honest sites in a total."""
    asked = federation.asked
    return threshold_of(federation, asked) - colluders_of(federation, asked)


def digest_of(names: Collection[str]) -> str:
    """Return a digest of a set of sites."""
    return hashlib.sha256(json.dumps(sorted(names)).encode()).hexdigest()[:32]
