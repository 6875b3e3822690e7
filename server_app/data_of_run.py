"""The data that a run is of: whether all who read it read the same, and what the record says about who holds what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from logging import getLogger
from statistics import median_low
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.data.division.partitions import class_counts, report
from common.division import Division, require_same_data
from common.errors import FederationError
from common.sites import SUPERLINK, Site, engine_of, site_name
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
    reported = Counter(site.data for site in members.sites if site.data).most_common(1)
    members.data = read or {"": reported[0][0]} if reported else read
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


# ---- who holds what ------------------------------------------------------------------------------

MOST_LISTED = 1000
"""Sites of a simulation that a record lists at most; the others can be divided again."""

#: more sites than this are not listed in the log; the record has them all
_MAX_SHOWN = 20

_UNLISTED = (
    f"a simulation of more than {MOST_LISTED} sites lists none of them: `nectar data --config config.yaml` divides the "
    "data set as this run did and says who holds what"
)


def describe_partition(
    division: Division, sites: list[Site], left_out: Mapping[int, str] | None = None
) -> dict[str, Any]:
    """Return what the record says about who holds what, and why nodes that were there take no part.

    Class counts are there only where the server has the data itself, and the task has classes. Of a large
    simulation there are sizes alone.
    """
    run = division.run
    found: dict[str, Any] = {
        "classes": list(run.info.classes) if run.task.by_class else [],
        "simulated": bool(sites) and engine_of(sites) != SUPERLINK,
        "sites": {},
    }
    if not run.config.site_places and (sizes := unlisted(sites, told=run.config.tells_counts)):
        found["unlisted"] = sizes
    else:
        found["sites"] = _rows(division, sites)
    if left_out:
        found["left_out"] = {str(node): why for node, why in left_out.items()}
    return found


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
        "why": _UNLISTED,
    }


def _rows(division: Division, sites: list[Site]) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {s.name: {"examples": s.examples} for s in sites}
    run = division.run
    if sites and sites[0].partitions and run.task.by_class and data_at_hand(division):
        counts = _counts(division, sites[0].partitions)
        for site in sites:
            held = {"partition": site.partition, "classes": counts[site.partition].tolist()}
            rows[site.name] |= held
        if len(sites) <= _MAX_SHOWN:
            names = {s.partition: s.name for s in sorted(sites, key=lambda s: s.partition)}
            unit = run.info.unit
            table = report(counts[list(names)], run.info.classes, unit, list(names.values()))
            logger.info("%s of each class by site:\n%s", unit, table)
    return rows


def _counts(division: Division, sites: int) -> NDArray[np.int64]:
    """Return the number of images of each class in each partition or folder, int64 [sites, classes]."""
    classes = len(division.run.info.classes)
    if division.config.site_places:
        held = [dataset.train.labels for dataset in division.site_datasets.values()]
        return np.stack([np.bincount(labels, minlength=classes) for labels in held])
    return class_counts(division.dataset.train.labels, division.partition(sites), classes)


def held_out(division: Division, sites: Sequence[Site]) -> dict[str, NDArray[np.int64]]:
    """Return what each of the sites holds out, by class, where the server reads it or all are on its machine."""
    here = engine_of(sites) != SUPERLINK or data_at_hand(division)
    if not sites or not sites[0].partitions or not here:
        return {}
    found = division.held_out(sites[0].partitions)
    return {site.name: found[site.drawn_as] for site in sites if site.drawn_as in found}
