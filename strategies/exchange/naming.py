"""Sites, nodes and reasons in a sentence: by name where there is one, and not all where there are many."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from flwr.serverapp import Grid

from common.errors import one_line
from common.sites import Site, site_slug

_SILENT = "online and busy or not answering: "


def some_of(reasons: Sequence[str], shown: int = 3) -> str:
    """Return the first of ``reasons``, and how many more there are."""
    different = list(dict.fromkeys(reasons))
    more = f"; and {len(different) - shown} more" if len(different) > shown else ""
    return "; ".join(different[:shown]) + more


def listed(names: Sequence[str], shown: int = 20) -> str:
    """Return the first of ``names``, and how many more there are."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def said_of_silent(
    grid: Grid, node_ids: Iterable[int], names: Mapping[int, str] | None = None
) -> str:
    """Return a clause about nodes that are online and do not answer.

    Each is called by the name under which it answered earlier, else by the one it was registered with, else by its
    number.
    """
    return said_of(node_ids, {**registered(grid), **(names or {})})


def registered(grid: Grid) -> dict[int, str]:
    """Return the names under which the nodes that are online were registered, by node id."""
    return {node.node_id: one_line(node.name[:64]) for node in grid.get_nodes()}


def misnamed(sites: Iterable[Site], names: Mapping[int, str]) -> dict[int, str]:
    """Return why each of the sites takes no part whose name is not the one that its key was registered with.

    Parameters
    ----------
    names : mapping of int to str
        As `registered` gives them. A node that was registered without a name may bear any; a file of a key is called by
        a site's slug, and a key that was registered from it too.
    """
    odd = {}
    for site in sites:
        known = names.get(site.node_id, "")
        if known and known not in (site.name, site_slug(site.name)):
            odd[site.node_id] = (
                f"node {site.node_id} calls itself '{site.name}', and its key is registered as '{known}': set "
                f"site='{known}' in its node config, or register its key as '{site.name}'"
            )
    return odd


def said_of(node_ids: Iterable[int], called: Mapping[int, str]) -> str:
    """Return that clause about nodes of which the names are known that they have."""
    said = [f"{called[i]} (node {i})" if called.get(i) else f"node {i}" for i in sorted(node_ids)]
    return f"{_SILENT}{', '.join(said)}"


def silent_in(line: str) -> tuple[str, ...]:
    """Return the numbers of the nodes of which a line of a log has that clause."""
    return tuple(re.findall(r"\bnode (\d+)", line.partition(_SILENT)[2]))
