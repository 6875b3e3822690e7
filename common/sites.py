"""Sites: the members of a federation by name, and the order in which everything about them is done."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath

from common.errors import FederationError

#: what a run is of: nodes in one process, Ray's on one machine, or SuperNodes of their own at a SuperLink
IN_PROCESS, RAY, SUPERLINK = ENGINES = ("in-process", "ray", "superlink")

#: the clause of a server's sentence that names nodes which do not answer; `nectar status` finds them by it
SILENT = "online and busy or not answering: "

#: names all of them where images are listed by site; no site can have this name
ALL_SITES = "all sites"

#: the file in a site's state with its own model that it evaluated last
KEPT_MODEL = "model.safetensors"

_LONGEST = 64

_PLAIN = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{_LONGEST - 1}}}")

#: letters and marks that nothing is drawn for, so that two names with and without them look the same
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def is_site_name(text: str) -> bool:
    """Return whether a site can have this name: the only check, at a site, the server and in a record.

    1 to 64 characters in Unicode's form NFC, a letter or digit first: letters and digits of any script, their marks,
    dots, dashes, underscores, and single spaces inside. So neither a control, nor a mark of direction or of no width,
    nor what separates the parts of a path.
    """
    if _PLAIN.fullmatch(text):
        return True
    if not 1 <= len(text) <= _LONGEST or text == ALL_SITES or _UNSEEN.search(text):
        return False
    kinds = [unicodedata.category(c) for c in text]
    letters = all(
        k[0] in "LM" or k == "Nd" or c in "._- " for c, k in zip(text, kinds, strict=True)
    )
    begins = kinds[0][0] == "L" or kinds[0] == "Nd"
    spaced = "  " not in text and text[-1] != " "
    return letters and begins and spaced and unicodedata.is_normalized("NFC", text)


def site_slug(name: str) -> str:
    """Return the slug of a site in names of files: the name, where it is of ASCII letters, digits and ``._-``.

    Another is given the letters that ASCII has, and after a ``~``, which no name has, the start of its SHA-256: so no
    two names share a slug, even chosen on purpose.
    """
    if _PLAIN.fullmatch(name) or name == ALL_SITES:
        return name
    letters = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    seen = re.sub(r"[^A-Za-z0-9._-]+", "-", letters).strip("-_.")[:40] or "site"
    return f"{seen}~{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def site_order(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key: runs of digits count as numbers, so that partition-2 comes before partition-10."""
    parts = re.findall(r"\d+|\D+", name)
    return tuple((0, int(p), p) if p.isdecimal() else (1, 0, p) for p in parts)


def site_name(node_config: Mapping[str, object]) -> str:
    """Return the site's name in form NFC: of its node config, else ``partition-<i>``, else its folder's last part."""
    name = node_config.get("site")
    if name is None and "partition-id" in node_config:
        name = partition_name(node_config["partition-id"])
    if name is None and "data" in node_config:
        name = _called(str(node_config["data"]))
    if name is None:
        raise FederationError(
            "a node needs a name: start its SuperNode with --node-config \"site='NAME'\" or with "
            '"partition-id=I num-partitions=K"'
        )
    name = unicodedata.normalize("NFC", str(name)[: 4 * _LONGEST])
    if not is_site_name(name):
        raise FederationError(
            f"the site name {name[:80]!a} is not allowed: choose 1 to {_LONGEST} letters, digits, dots, dashes, "
            f"underscores and single spaces, a letter or digit first, and not '{ALL_SITES}'"
        )
    return name


def folder_sites(folders: str) -> tuple[str, ...]:
    """Return the names of simulated sites with folders of their own, ``folders`` as ``images.sites`` has them.

    A site is called as its folder, or its table without the ending, with a dash for what no name can have, such as a
    bracket. One is called as its partition where another would be called the same, or no site could be called so.
    """
    names = [_called(path) for path in folders.split(",")] if folders else []
    count = Counter(names)
    alone = {name for name in names if count[name] == 1 and is_site_name(name)}
    numbered = [partition_name(i) for i in range(len(names))]
    found = [n if n in alone else number for n, number in zip(names, numbered, strict=True)]
    return tuple(found if len(set(found)) == len(found) else numbered)


def _called(folder: str) -> str:
    """Return the name of a site with this folder, or table."""
    name = unicodedata.normalize("NFC", PurePath(folder).name).removesuffix(".csv")
    if is_site_name(name):
        return name
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-_.")[:_LONGEST]


def partition_name(index: object) -> str:
    """Return the name that seeds the draws of a partition's holder, independent of its node's name."""
    return f"partition-{index}"


@dataclass(frozen=True, slots=True)
class Site:
    """One site, as the roll call found it.

    ``drawn_as`` is what its draws and its place in the order go by: the partition of a known data set that it holds,
    so that a simulation has the same, else its name.
    """

    name: str
    node_id: int
    examples: int
    partition: int = -1
    partitions: int = 0
    class_counts: tuple[int, ...] = ()
    engine: str = IN_PROCESS
    held_out: int = 0
    drawn_as: str = ""
    data: str = ""  # the checksum of what it reads, if that is not a real site's own

    def __post_init__(self) -> None:
        """Seed draws by the name unless another one is given."""
        if not self.drawn_as:
            object.__setattr__(self, "drawn_as", self.name)


def engine_of(sites: Iterable[Site]) -> str:
    """Return the run's engine: one real SuperNode makes it a federation."""
    found = {site.engine for site in sites}
    return next((engine for engine in (SUPERLINK, RAY) if engine in found), IN_PROCESS)


def in_site_order(sites: Iterable[Site]) -> list[Site]:
    """Return ``sites`` sorted by the names that seed their draws; FederationError if two have the same name."""
    ordered = sorted(sites, key=lambda site: (site_order(site.drawn_as), site_order(site.name)))
    for pair in pairwise(sorted(ordered, key=lambda site: site.name)):
        if pair[0].name == pair[1].name:
            raise FederationError(namesakes(pair))
    return ordered


def namesakes(sites: Sequence[Site]) -> str:
    """Describe that two or more ``sites`` have the same name."""
    nodes = sorted(site.node_id for site in sites)
    return (
        f"two nodes call themselves '{sites[0].name}' (node ids {nodes[0]} and {nodes[1]}): give every SuperNode its "
        "own site name or partition-id"
    )
