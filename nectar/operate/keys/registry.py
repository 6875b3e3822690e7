"""Which sites may take part: their public keys at the SuperLink."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from common.storage.files import write_text
from nectar.engines.flower.connection import Connection
from nectar.engines.flower.errors import CommandRefused
from nectar.operate.keys.authority import (
    FOLDER,
    SUFFIX,
    KeysError,
    fingerprint,
    public_halves,
    read,
    read_public,
)
from nectar.operate.keys.database import key_fingerprint

if TYPE_CHECKING:
    from nectar.engines.flower.superlink import Node

#: Flower's own words for a node that may not come back, and for one that was registered and has not come
UNREGISTERED, _NEVER = "unregistered", "registered"


def register(
    connection: Connection, public_files: Sequence[Path], wait: float, *, all_of: Path | None = None
) -> None:
    """Register sites by their public halves; one that is registered already stays so, one that is refused stops none.

    Parameters
    ----------
    public_files : sequence of Path
        The files ``SITE.pub``; a site's name at the SuperLink is the file's.
    all_of : Path, optional
        A directory of keys, all of whose sites are meant. Those that were unregistered are named and stay out; asked
        for by its file, such a site is refused.

    Raises
    ------
    KeysError
        If a file holds no public half, before any is registered. After the others, if a key was refused or was
        unregistered earlier.
    LaunchError
        If the SuperLink does not answer.
    """
    files = [*public_files, *(_required_halves(all_of) if all_of else [])]
    keys = {path: read_public(path) for path in files}
    gone = {path: revoked(list_for(path)) for path in files}
    connection.wait(wait)
    problems = []
    with connection.superlink() as superlink:
        nodes = {node.public_key: node for node in superlink.nodes()}
        for path, key in keys.items():
            site = path.name.removesuffix(SUFFIX)
            node = nodes.get(_pem(key))
            try:
                if _is_revoked(key, node, gone[path]):
                    if all_of is None:
                        raise KeysError(
                            f"{path} was unregistered, and Flower takes no key twice: let the site make a new pair"
                        )
                    standing = (
                        "stays out, since it was unregistered; with a new pair it can come back"
                    )
                elif node is None:
                    standing = f"registered as node {superlink.register(key, site)}"
                else:
                    now = "never online yet" if node.status == _NEVER else node.status
                    standing = f"registered already as node {node.number}, {now}"
            except (KeysError, CommandRefused) as problem:
                problems.append(f"{site}: {problem}")
            else:
                print(f"{site}: {standing} ({fingerprint(key)})", flush=True)
    if problems:
        raise KeysError("\n".join(problems))


def _required_halves(directory: Path) -> list[Path]:
    found = public_halves(directory)
    if not found:
        raise KeysError(
            f"neither {directory / FOLDER} nor {directory} holds a site's public half, SITE{SUFFIX}: a site makes its "
            "pair with `nectar keys node` and sends that file"
        )
    return found


def _is_revoked(key: ec.EllipticCurvePublicKey, node: Node | None, gone: Sequence[Revoked]) -> bool:
    """Return whether a key was unregistered: at the SuperLink, whose database may be an older one, or by the list."""
    unregistered = node is not None and node.status == UNREGISTERED
    return unregistered or bool(find(gone, node.number if node else "", fingerprint(key)))


def unregister(connection: Connection, which: Sequence[Path | str], directory: Path | None) -> None:
    """Take registrations back, by public half or by node number; a running SuperNode ends by it.

    Each is put on the list of its directory of keys, so that no older database brings it back.

    Parameters
    ----------
    which : sequence of Path or str
        Public halves, and numbers of nodes.
    directory : Path or None
        The directory of keys whose list takes the numbers.

    Raises
    ------
    KeysError
        If the SuperLink knows no such key or node, before any is unregistered, or the list cannot be written.
    LaunchError
        If the SuperLink does not answer.
    """
    for entry in which:
        note_revoked(
            _list_of(entry, directory), []
        )  # found out before a site is out and not listed
    with connection.superlink() as superlink:
        nodes = superlink.nodes()
        meant = [(entry, _node_of(entry, nodes, connection.address)) for entry in which]
        for entry, node in meant:
            superlink.unregister(node.number)
            path, of = _list_of(entry, directory), key_fingerprint(node.public_key)
            site = node.name if isinstance(entry, str) else entry.name.removesuffix(SUFFIX)
            note_revoked(path, [Revoked(node.number, of, site)])
            print(f"node {node.number}: unregistered, and listed in {path}", flush=True)


def _list_of(entry: Path | str, directory: Path | None) -> Path:
    if isinstance(entry, Path):
        return list_for(entry)
    if directory is None:
        raise KeysError(
            f"node {entry}: give the directory of keys whose list is to name it (--keys DIR), or the site's .pub file"
        )
    return directory / LIST


def _node_of(entry: Path | str, nodes: Sequence[Node], address: str) -> Node:
    if isinstance(entry, str):
        found = [node for node in nodes if node.number == entry]
        unknown = f"there is no node {entry} at the SuperLink {address}"
    else:
        key = _pem(read_public(entry))
        found = [node for node in nodes if node.public_key == key]
        unknown = f"{entry} is registered as no node at the SuperLink {address}"
    if not found:
        raise KeysError(f"{unknown}: `flwr supernode list` shows all")
    return found[0]


def _pem(key: ec.EllipticCurvePublicKey) -> bytes:
    """Return a public half as the SuperLink keeps it."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


# ---- revoked -------------------------------------------------------------------------------------
# Which keys were unregistered: a list beside the keys, which no backup holds and no restore shortens.

LIST = "revoked.txt"
"""The list's name in a directory of keys."""

_UNKNOWN = "-"

_HEAD = """\
# Keys that were unregistered: node, fingerprint, site, day (UTC). `nectar keys register` refuses them, and
# `nectar keys enforce` unregisters them again. Keep a copy elsewhere: a backup does not hold this list.
"""

_LINE = re.compile(r"(?P<node>\d+|-) (?P<fingerprint>SHA256:\S+|-) (?P<site>\S+) (?P<day>[\d-]+)")


@dataclass(frozen=True)
class Revoked:
    """A key that may never come back.

    Attributes
    ----------
    node : str
        The number of the node that it was registered as; empty if nobody knows it.
    fingerprint : str
        The public half's, as ``ssh-keygen -l`` prints it; empty if nobody knows it.
    site : str
        Its name at the SuperLink.
    day : str
        When it was unregistered.
    """

    node: str
    fingerprint: str
    site: str = ""
    day: str = ""

    def is_of(self, node: str, fingerprint: str) -> bool:
        """Return whether a key of this fingerprint, registered as this node, is meant."""
        return node == self.node != "" or fingerprint == self.fingerprint != ""


def list_for(public_file: Path) -> Path:
    """Return the list of the directory of keys in which a public half lies."""
    above = public_file.parent
    return (above.parent if above.name == FOLDER else above) / LIST


def revoked(path: Path) -> list[Revoked]:
    """Return what is on the list; nothing if there is none.

    Raises
    ------
    KeysError
        If a line cannot be read: a key that it names would pass for one that was never unregistered.
    """
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(read(path).decode(errors="replace").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise KeysError(
                f"{path}, line {number} is not of the form `NODE FINGERPRINT SITE DAY`: mend it, since it may name a "
                "key that must not come back"
            )
        found.append(
            Revoked(*(text.strip() if text != _UNKNOWN else "" for text in match.groups()))
        )
    return found


def note_revoked(path: Path, entries: Iterable[Revoked]) -> None:
    """Put on the list what is not on it yet; KeysError if it cannot be read or written."""
    known = revoked(path)
    new = [entry for entry in entries if not find(known, entry.node, entry.fingerprint)]
    if not new and path.exists():
        return
    before = path.read_text(encoding="utf-8") if path.exists() else _HEAD
    try:
        write_text(path, before + "".join(map(_line, new)))
    except OSError as error:
        raise KeysError(f"{path} cannot be written ({error.strerror}): make room for it") from None


def find(entries: Sequence[Revoked], node: str, fingerprint: str) -> Revoked | None:
    """Return the entry of a key, None if it has none."""
    return next((entry for entry in entries if entry.is_of(node, fingerprint)), None)


def _line(entry: Revoked) -> str:
    day = entry.day or f"{datetime.now(UTC):%Y-%m-%d}"
    words = (entry.node, entry.fingerprint, entry.site.replace(" ", "_"), day)
    return " ".join(word or _UNKNOWN for word in words) + "\n"
