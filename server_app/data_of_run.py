"""Whether all who read the run's data read the same: this process, the sites, and whoever began the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from logging import getLogger
from typing import Any

from common.division import Division, require_same_data
from common.errors import FederationError
from common.sites import SUPERLINK, Site, engine_of
from strategies.exchange.membership import Members

logger = getLogger("flwr")


def data_at_hand(division: Division) -> bool:
    """Return whether the server reads the data of which each site has its share, or the simulated sites' folders."""
    return bool(division.config.site_places) or division.judged


def recorded_data(provenance: Mapping[str, Any]) -> dict[str, str]:
    """Return the checksums that a record states, as `Division.checksums` has them; empty ones are not known."""
    stated = provenance.get("data")
    stated = stated if isinstance(stated, dict) else {}
    sites = stated.get("sites")
    return {**(sites if isinstance(sites, dict) else {}), "": str(stated.get("sha256", ""))}


def stated_data(dataset: str, data: Mapping[str, str]) -> dict[str, Any]:
    """Return what a record states of the data, from which `recorded_data` reads the checksums ``data``."""
    sites = {name: checksum for name, checksum in data.items() if name}
    return {"name": dataset, "sha256": data.get("", ""), **({"sites": sites} if sites else {})}


def require_data_of(site: Site, data: Mapping[str, str], dataset: str) -> None:
    """Refuse a site that reads other data than those of the run, by a FederationError."""
    require_same_data(dataset, data, {site.name if site.name in data else "": site.data})


def agree_on_data(members: Members, read: Mapping[str, str], dataset: str, quorum: int) -> None:
    """Note the checksums of the run's data, what this process reads or else most sites, and leave out other sites.

    Raises
    ------
    FederationError
        If a simulated site reads something else, or half of the sites do, or fewer than ``quorum`` are left.
    """
    told = Counter(site.data for site in members.sites if site.data).most_common(1)
    members.data = read or {"": told[0][0]} if told else read
    odd = {}
    for site in members.sites:
        try:
            require_data_of(site, members.data, dataset)
        except FederationError as error:
            odd[site.node_id] = f"site '{site.name}': {error}"
            logger.warning("left out: %s", odd[site.node_id])
            left = len(members.sites) - len(odd)
            if engine_of(members.sites) != SUPERLINK or left < quorum or left <= len(odd):
                raise
    members.sites = [site for site in members.sites if site.node_id not in odd]
    members.left_out, members.refused = {**members.left_out, **odd}, members.refused | odd.keys()
