"""Which sites may take part: their public keys at the SuperLink."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from common.storage.files import write_text
from nectar.engines.flower.connection import Connection
from nectar.engines.flower.errors import CommandRefused
from nectar.engines.flower.federation import REGISTERED, UNREGISTERED, Node
from nectar.operate.keys.authority import (
    FOLDER,
    SUFFIX,
    KeysError,
    fingerprint,
    public_halves,
    read,
    read_public,
)


def register(
    connection: Connection, public_files: Sequence[Path], wait: float, *, all_of: Path | None = None
) -> None:
    """Register sites by their public keys; already registered ones stay so, and a refused one does not stop the others.

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
        nodes = {node.fingerprint: node for node in superlink.nodes()}
        for path, key in keys.items():
            site, mark = path.name.removesuffix(SUFFIX), fingerprint(key)
            node = nodes.get(mark)
            is_out = node is not None and node.status == UNREGISTERED
            if is_out or find(gone[path], node.node if node else "", mark):
                if all_of is None:
                    problems.append(
                        f"{site}: {path} was unregistered, and Flower refuses used keys: let the site make a new pair"
                    )
                    continue
                result = "not registered, since it was unregistered before; it needs a new key pair"
            elif node is not None:
                state = "never online yet" if node.status == REGISTERED else node.status
                result = f"already registered as node {node.node}, {state}"
            else:
                try:
                    result = f"registered as node {superlink.register(key, site)}"
                except CommandRefused as refusal:
                    problems.append(f"{site}: {refusal}")
                    continue
            print(f"{site}: {result} ({mark})", flush=True)
    if problems:
        raise KeysError("\n".join(problems))


def _required_halves(directory: Path) -> list[Path]:
    found = public_halves(directory)
    if not found:
        raise KeysError(
            f"neither {directory / FOLDER} nor {directory} holds a site's public key, SITE{SUFFIX}: a site makes its "
            "key pair with `nectar keys node` and sends that file"
        )
    return found


def unregister(connection: Connection, which: Sequence[Path | str], directory: Path | None) -> None:
    """Unregister sites, by public key or by node number; their running SuperNodes exit.

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
    lists = [_list_of(entry, directory) for entry in which]
    for path in lists:
        note_revoked(path, [])  # fails, if it does, before a site is out and not listed
    with connection.superlink() as superlink:
        nodes = superlink.nodes()
        found = [_node_of(entry, nodes, connection.address) for entry in which]
        for path, node in zip(lists, found, strict=True):
            superlink.unregister(node.node)
            note_revoked(path, [node])
            site = node.site or "site without a name"
            print(f"{site}: node {node.node} unregistered, and listed in {path}", flush=True)


def _list_of(entry: Path | str, directory: Path | None) -> Path:
    if isinstance(entry, Path):
        return list_for(entry)
    if directory is None:
        raise KeysError(
            f"node {entry}: give --keys DIR, whose revoked.txt is to list it, or the site's .pub file"
        )
    return directory / LIST


def _node_of(entry: Path | str, nodes: Sequence[Node], address: str) -> Node:
    if isinstance(entry, str):
        found = [node for node in nodes if node.node == entry]
        unknown = f"node {entry} does not exist at the SuperLink {address}"
    else:
        mark = fingerprint(read_public(entry))
        found = [node for node in nodes if node.fingerprint == mark]
        unknown = f"{entry} is not registered at the SuperLink {address}"
    if not found:
        raise KeysError(f"{unknown}: `flwr supernode list` shows all")
    return found[0]


# ---- revoked -------------------------------------------------------------------------------------
# Which keys were unregistered: a list in the directory of keys, which no backup holds and no restore shortens.

LIST = "revoked.txt"
"""The list's name in a directory of keys."""

_UNKNOWN = "-"

_HEAD = """\
# Keys that were unregistered: node, fingerprint, site, day (UTC). `nectar keys register` refuses them, and
# `nectar keys enforce` unregisters them again. Keep a copy elsewhere: a backup does not hold this list.
"""

_LINE = re.compile(r"(?P<node>\d+|-) (?P<fingerprint>SHA256:\S+|-) (?P<site>\S+) (?P<day>[\d-]+)")


def list_for(public_file: Path) -> Path:
    """Return the revocation list of the directory of keys that holds a public key."""
    above = public_file.parent
    return (above.parent if above.name == FOLDER else above) / LIST


def revoked(path: Path) -> list[Node]:
    """Return the nodes on the list, each ``since`` the day when it was unregistered; nothing if there is no list.

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
                f"{path}, line {number} does not have the form `NODE FINGERPRINT SITE DAY`: correct it, it may name a "
                "revoked key"
            )
        node, mark, site, day = ("" if text == _UNKNOWN else text for text in match.groups())
        found.append(Node(site, node, UNREGISTERED, day, mark))
    return found


def note_revoked(path: Path, nodes: Iterable[Node]) -> None:
    """Put nodes that are unregistered now on the list; KeysError if it cannot be read or written."""
    known, today = revoked(path), f"{datetime.now(UTC):%Y-%m-%d}"
    new = [node for node in nodes if not find(known, node.node, node.fingerprint)]
    if not new and path.exists():
        return
    text = path.read_text(encoding="utf-8") if path.exists() else _HEAD
    for node in new:
        day = node.since if node.status == UNREGISTERED and node.since else today
        words = (node.node, node.fingerprint, node.site.replace(" ", "_"), day[:10])
        text += " ".join(word or _UNKNOWN for word in words) + "\n"
    try:
        write_text(path, text)
    except OSError as error:
        raise KeysError(f"{path} cannot be written ({error.strerror}): free some space") from None


def find(nodes: Sequence[Node], number: str, mark: str) -> Node | None:
    """Return the node with this number, or with the key of this fingerprint, if any."""
    same = (node for node in nodes if node.node == number != "" or node.fingerprint == mark != "")
    return next(same, None)
