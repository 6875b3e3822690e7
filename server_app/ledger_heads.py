"""The heads of the sites' privacy ledgers that a server has seen: in each run's record, and together for the next run.

A site that comes back with an older copy of its ledger is refused by itself once it is told the newest of them. Who
puts back an older copy of the site's state and of the server's records alike is not noticed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from logging import getLogger
from pathlib import Path

from common.privacy.head import Head
from common.storage.files import read_regular, write_json

logger = getLogger("flwr")

FILE = "ledger-heads.json"
"""In a record: by site, the newest head that this run saw."""


def keep(record: Path, heads: Mapping[str, Head]) -> None:
    """Write what was seen until now; nothing where no site keeps a ledger."""
    if heads:
        write_json(record / FILE, {site: asdict(head) for site, head in heads.items()})


def seen(places: Iterable[Path]) -> dict[str, Head]:
    """Return by site the longest head in the records below ``places``; of one that is damaged a warning is left."""
    found: dict[str, Head] = {}
    for path in sorted({path for place in places for path in place.glob(f"*/{FILE}")}):
        for site, head in _read(path).items():
            if head.length > found.get(site, Head()).length:
                found[site] = head
    return found


def _read(path: Path) -> dict[str, Head]:
    try:
        content = json.loads(read_regular(path))
        return {str(site): Head.read(head) for site, head in content.items()}
    except (OSError, ValueError, AttributeError, RecursionError):
        logger.warning(
            "%s is damaged, so that a site whose privacy ledger was put back is not told what that run saw of it: "
            "put back a whole copy of the record, or delete the file",
            path,
        )
        return {}
