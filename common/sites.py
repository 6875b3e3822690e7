"""Sites: the members of a federation by name, and the order in which everything about them is done."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath

from common.errors import FederationError

#: what a run is of: nodes in one process, Ray's on one machine, or SuperNodes of their own at a SuperLink
IN_PROCESS, RAY, SUPERLINK = ENGINES = ("in-process", "ray", "superlink")

#: stands for all of them where images are told by site; no site can be called so
ALL_SITES = "all sites"

SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def site_order(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key: runs of digits count as numbers, so that partition-2 comes before partition-10."""
    parts = re.findall(r"\d+|\D+", name)
    return tuple((0, int(p), p) if p.isdigit() else (1, 0, p) for p in parts)


def site_name(node_config: Mapping[str, object]) -> str:
    """Return the site's name: from its node config, else ``partition-<i>``, else its own folder's last part.

    Raises
    ------
    FederationError
        If the node config names no site, partition or folder, or the name cannot be part of a file's name.
    """
    name = node_config.get("site")
    if name is None and "partition-id" in node_config:
        name = f"partition-{node_config['partition-id']}"
    if name is None and "data" in node_config:
        name = _called(str(node_config["data"]))
    if name is None:
        raise FederationError(
            "a node needs a name: start its SuperNode with --node-config \"site='NAME'\" or with "
            '"partition-id=I num-partitions=K"'
        )
    if not SITE_NAME.fullmatch(str(name)):
        raise FederationError(
            f"the site name {str(name)[:80]!r} is not allowed: 1 to 64 letters, digits, dots, dashes and "
            "underscores, a letter or digit first"
        )
    return str(name)


def folder_sites(folders: str) -> tuple[str, ...]:
    """Return the names of simulated sites with folders of their own, ``folders`` as ``images.sites`` has them.

    A site is called as its folder, with a dash for what no site's name can have, such as a space. One is called as its
    partition where another would be called the same, or no site could be called so.
    """
    names = [_called(path) for path in folders.split(",")] if folders else []
    count = Counter(names)
    alone = {name for name in names if count[name] == 1 and SITE_NAME.fullmatch(name)}
    numbered = [f"partition-{i}" for i in range(len(names))]
    found = [n if n in alone else number for n, number in zip(names, numbered, strict=True)]
    return tuple(found if len(set(found)) == len(found) else numbered)


def _called(folder: str) -> str:
    """Return what a site with this folder is called."""
    name = PurePath(folder).name
    if SITE_NAME.fullmatch(name):
        return name
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-_.")[:64]


@dataclass(frozen=True, slots=True)
class Site:
    """One member, as the roll call found it."""

    name: str
    node_id: int
    examples: int
    partition: int = -1
    partitions: int = 0
    class_counts: tuple[int, ...] = ()
    engine: str = IN_PROCESS
    held_out: int = 0


def engine_of(sites: Iterable[Site]) -> str:
    """Return what the run is of: one SuperNode of its own makes it a federation."""
    found = {site.engine for site in sites}
    return next((engine for engine in (SUPERLINK, RAY) if engine in found), IN_PROCESS)


def in_site_order(sites: Iterable[Site]) -> list[Site]:
    """Return ``sites`` sorted by name; FederationError if two carry the same one."""
    ordered = sorted(sites, key=lambda site: site_order(site.name))
    for pair in pairwise(ordered):
        if pair[0].name == pair[1].name:
            raise FederationError(namesakes(pair))
    return ordered


def namesakes(sites: Sequence[Site]) -> str:
    """Say that ``sites``, of which there are two or more, bear one name."""
    nodes = sorted(site.node_id for site in sites)
    return (
        f"two nodes call themselves '{sites[0].name}' (node ids {nodes[0]} and {nodes[1]}): give every SuperNode its "
        "own site name or partition-id"
    )
