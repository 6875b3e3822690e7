"""Which sites may take part: their public keys at the SuperLink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from common.storage.files import write_text
from nectar.engines.flower.client import Refused
from nectar.engines.flower.connection import Connection
from nectar.operate.keys.files import KeysError
from nectar.operate.keys.nodes import (
    FOLDER,
    SUFFIX,
    fingerprint,
    note_of,
    noted,
    public_halves,
    read_public,
)
from nectar.operate.keys.revoked import LIST, Revoked, find, list_for, note_revoked, revoked

_SECONDS = 120.0

#: Flower's own words for a key that is registered, and for a node that is no longer
_KNOWN, _GONE = "[code: 23]", "unregistered"

#: and for one that was registered and has not come
_NEVER = "registered"


class _Unregistered(KeysError):
    """A key that was unregistered, and is never taken again."""


def register(
    connection: Connection, public_files: Sequence[Path], wait: float, *, all_of: Path | None = None
) -> None:
    """Register sites by their public halves; one that is registered already stays so, one that is refused stops none.

    The node's number is noted beside the public half, for :func:`unregister`.

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
        If a file holds no public half, before any is registered. After the others, if a key was refused, was
        unregistered earlier, or may have been.
    LaunchError
        If the SuperLink does not answer.
    """
    files = [*public_files, *(_required_halves(all_of) if all_of else [])]
    keys = {path: read_public(path) for path in files}
    gone = {path: revoked(list_for(path)) for path in files}
    connection.wait(wait)
    # Each call of Flower's client is a process of several seconds, so one tells of all keys that are known.
    nodes = _nodes(connection)
    problems = []
    for path, key in keys.items():
        site = path.name.removesuffix(SUFFIX)
        try:
            _refuse_revoked(path, key, gone[path])
            standing = _standing(path, key, nodes) or _registered(connection, path, key, nodes)
        except _Unregistered as problem:
            if not all_of:
                problems.append(f"{site}: {problem}")
                continue
            standing = "stays out, since it was unregistered; with a new pair it can come back"
        except (KeysError, Refused) as problem:
            problems.append(f"{site}: {problem}")
            continue
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


def _refuse_revoked(path: Path, key: ec.EllipticCurvePublicKey, gone: Sequence[Revoked]) -> None:
    """Refuse a key that is on the list, whatever the SuperLink says: its database may be an older one."""
    node, of = noted(path)
    if find(gone, node if of == fingerprint(key) else "", fingerprint(key)):
        raise _unregistered(path)


def _unregistered(path: Path) -> _Unregistered:
    return _Unregistered(
        f"{path} was unregistered, and Flower takes no key twice: let the site make a new pair"
    )


def _nodes(connection: Connection) -> dict[str, str]:
    """Return the status of every node that Flower knows, by its number."""
    answer = connection.client().ask(["supernode", "list", connection.name], _SECONDS)
    return {str(node["node-id"]): str(node["status"]) for node in answer.get("nodes", [])}


def _standing(path: Path, key: ec.EllipticCurvePublicKey, nodes: Mapping[str, str]) -> str:
    """Say how a key stands that was noted as one of ``nodes``, if it is one; KeysError if it was unregistered."""
    node, of = noted(path)
    return _how(path, node, nodes) if of == fingerprint(key) else ""


def _how(path: Path, node: str, nodes: Mapping[str, str]) -> str:
    status = nodes.get(node)
    if status == _GONE:
        raise _unregistered(path)
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
        If the number of a public half is not noted beside it, or the list cannot be written.
    LaunchError
        If the SuperLink does not answer or knows no such node.
    """
    meant = [_by_number(e, directory) if isinstance(e, str) else _by_file(e) for e in which]
    for path, _ in meant:
        note_revoked(path, [])  # the list that cannot be written is not found out afterwards
    client = connection.client()
    for path, entry in meant:
        client.ask(["supernode", "unregister", entry.node, connection.name], _SECONDS)
        note_revoked(path, [entry])
        print(f"node {entry.node}: unregistered, and listed in {path}", flush=True)


def _by_file(path: Path) -> tuple[Path, Revoked]:
    site = path.name.removesuffix(SUFFIX)
    return list_for(path), Revoked(_noted(path), fingerprint(read_public(path)), site)


def _by_number(node: str, directory: Path | None) -> tuple[Path, Revoked]:
    if directory is None:
        raise KeysError(
            f"node {node}: give the directory of keys whose list is to name it (--keys DIR), or the site's .pub file"
        )
    for path in sorted((directory / FOLDER).glob(f"*{SUFFIX}")):
        known, of = noted(path)
        if known == node:
            return directory / LIST, Revoked(node, of, path.name.removesuffix(SUFFIX))
    return directory / LIST, Revoked(node, "")


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
