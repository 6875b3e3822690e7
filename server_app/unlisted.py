"""What partition.json says of a simulation of so many sites that it does not list them one by one."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low
from typing import Any

from common.sites import SUPERLINK, Site, engine_of, site_name

MOST_LISTED = 1000
"""Sites of a simulation that a record lists at most; the others can be divided again."""

WHY = (
    f"a simulation of more than {MOST_LISTED} sites lists none of them: `nectar data --config config.yaml` divides the "
    "data set as this run did and says who holds what"
)


def unlisted(sites: Sequence[Site], *, told: bool = True) -> dict[str, Any] | None:
    """Return the sizes of sites that are not to be listed, as plain data; None if they are.

    Listed are always those of a real federation, and those with folders or names of their own: what they hold stands
    nowhere else. Sites that tell no number of examples (``told`` is false) have None for each of theirs.
    """
    if len(sites) <= MOST_LISTED or engine_of(sites) == SUPERLINK:
        return None
    if any(site.name != site_name({"partition-id": site.partition}) for site in sites):
        return None
    sizes = [site.examples for site in sites] if told else []
    return {
        "sites": len(sites),
        "examples": sum(sizes) if told else None,
        "least": min(sizes, default=None),
        "median": median_low(sizes) if told else None,
        "most": max(sizes, default=None),
        "why": WHY,
    }
