"""Which sites may take part: their public keys at the SuperLink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from common.files import write_text
from nectar.flower.client import Refused
from nectar.flower.connection import Connection
from nectar.keys.files import KeysError
from nectar.keys.nodes import SUFFIX, fingerprint, note_of, noted, read_public

_SECONDS = 120.0

#: Flower's own words for a key that is registered, and for a node that is no longer
_KNOWN, _GONE = "[code: 23]", "unregistered"

#: and for one that was registered and has not come
_NEVER = "registered"


def register(connection: Connection, public_files: Sequence[Path], wait: float) -> None:
    """Register sites by their public halves; one that is registered already stays so, one that is refused stops none.

    The node's number is noted beside the public half, for :func:`unregister`.

    Parameters
    ----------
    connection : Connection
        The SuperLink, by a way on which it answers its operator.
    public_files : sequence of Path
        The files ``SITE.pub``; a site's name at the SuperLink is the file's.
    wait : float
        Seconds that the SuperLink is waited for.

    Raises
    ------
    KeysError
        If a file holds no public half, before any is registered. Behind the others, if a key was refused, was
        unregistered earlier, or may have been.
    LaunchError
        If the SuperLink does not answer.
    """
    keys = {path: read_public(path) for path in public_files}
    connection.wait(wait)
    # Each call of Flower's client is a process of several seconds, so one tells of all keys that are known.
    nodes = _nodes(connection)
    problems = []
    for path, key in keys.items():
        site = path.name.removesuffix(SUFFIX)
        try:
            standing = _standing(path, key, nodes) or _registered(connection, path, key, nodes)
        except (KeysError, Refused) as problem:
            problems.append(f"{site}: {problem}")
            continue
        print(f"{site}: {standing} ({fingerprint(key)})", flush=True)
    if problems:
        raise KeysError("\n".join(problems))


def _nodes(connection: Connection) -> dict[str, str]:
    """Return the status of every node that Flower knows, by its number."""
    answer = connection.client().ask(["supernode", "list", connection.name], _SECONDS)
    return {str(node["node-id"]): str(node["status"]) for node in answer.get("nodes", [])}


def _standing(path: Path, key: ec.EllipticCurvePublicKey, nodes: Mapping[str, str]) -> str:
    """Say how a key stands of which it is noted that it was registered as one of ``nodes``; nothing if it is not.

    Raises
    ------
    KeysError
        If it was unregistered.
    """
    node, of = noted(path)
    return _how(path, node, nodes) if of == fingerprint(key) else ""


def _how(path: Path, node: str, nodes: Mapping[str, str]) -> str:
    status = nodes.get(node)
    if status == _GONE:
        raise KeysError(
            f"{path} was unregistered, and Flower takes no key twice: let the site make a new pair"
        )
    now = "never online yet" if status == _NEVER else status
    return f"registered already as node {node}, {now}" if status else ""


def _registered(
    connection: Connection, path: Path, key: ec.EllipticCurvePublicKey, nodes: Mapping[str, str]
) -> str:
    """Register one site and say how it stands then."""
    site = path.name.removesuffix(SUFFIX)
    words = ["supernode", "register", str(path.absolute()), connection.name, "--name", site]
    try:
        node = str(connection.client().ask(words, _SECONDS)["node-id"])
    except Refused as refusal:
        if _KNOWN not in str(refusal):
            raise
        return _known(path, key, nodes)
    _note(path, node, key)
    return f"registered as node {node}"


def _known(path: Path, key: ec.EllipticCurvePublicKey, nodes: Mapping[str, str]) -> str:
    """Say how a key stands that Flower knows, and of which no note says so for certain."""
    node, of = noted(path)
    if not of and (standing := _how(path, node, nodes)):
        _note(path, node, key)  # an earlier release noted the number alone
        return standing
    # The list names no keys: only where no node was ever unregistered, this one was not either.
    if _GONE in nodes.values():
        raise KeysError(
            f"{path} is known to the SuperLink, but may have been unregistered ({note_of(path).name} does not say as "
            "which node): let the site make a new pair"
        )
    return "registered already"


def unregister(connection: Connection, which: Sequence[Path | str]) -> None:
    """Take registrations back, by public half or by node number; a running SuperNode ends by it.

    Raises
    ------
    KeysError
        If the number of a public half is not noted beside it.
    LaunchError
        If the SuperLink does not answer or knows no such node.
    """
    numbers = [entry if isinstance(entry, str) else _noted(entry) for entry in which]
    client = connection.client()
    for number in numbers:
        client.ask(["supernode", "unregister", number, connection.name], _SECONDS)
        print(f"node {number}: unregistered", flush=True)


def _note(path: Path, node: str, key: ec.EllipticCurvePublicKey) -> None:
    try:
        # With the key's fingerprint: another key may come to lie there.
        write_text(note_of(path), f"{node} {fingerprint(key)}\n")
    except OSError as error:
        print(f"  (not noted in {note_of(path)}: {error.strerror}; keep the number)", flush=True)


def _noted(path: Path) -> str:
    node, _ = noted(path)
    if not node:
        raise KeysError(
            f"{note_of(path)} does not say as which node the key was registered: give the node's number "
            "(`flwr supernode list` shows them)"
        )
    return node
