"""Which sites may take part: their public keys at the SuperLink."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from common.storage.files import write_text
from nectar.engines.flower.client import CommandRefused
from nectar.engines.flower.connection import Connection
from nectar.operate.keys.authority import (
    FOLDER,
    SUFFIX,
    KeysError,
    fingerprint,
    note_of,
    noted,
    public_halves,
    read,
    read_public,
)

if TYPE_CHECKING:
    from nectar.engines.flower.control import Control

_SECONDS = 120.0

#: Flower's own word for a node that is registered no longer
_GONE = "unregistered"

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
        If a file holds no public half, before any is registered. After the others, if a key was refused or was
        unregistered earlier.
    LaunchError
        If the SuperLink does not answer.
    """
    files = [*public_files, *(_required_halves(all_of) if all_of else [])]
    keys = {path: read_public(path) for path in files}
    gone = {path: revoked(list_for(path)) for path in files}
    connection.wait(wait)
    with connection.control() as control:
        problems = _register(control, keys, gone, skip_revoked=all_of is not None)
    if problems:
        raise KeysError("\n".join(problems))


def _register(
    control: Control,
    keys: Mapping[Path, ec.EllipticCurvePublicKey],
    gone: Mapping[Path, Sequence[Revoked]],
    *,
    skip_revoked: bool,
) -> list[str]:
    """Register each key and say how it stands; return what is wrong, a sentence each."""
    nodes, problems = control.nodes(), []
    for path, key in keys.items():
        site = path.name.removesuffix(SUFFIX)
        try:
            _refuse_revoked(path, key, gone[path])
            known = nodes.get(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
            standing = _standing(path, key, *known) if known else _registered(control, path, key)
        except _Unregistered as problem:
            if not skip_revoked:
                problems.append(f"{site}: {problem}")
                continue
            standing = "stays out, since it was unregistered; with a new pair it can come back"
        except (KeysError, CommandRefused) as problem:
            problems.append(f"{site}: {problem}")
            continue
        print(f"{site}: {standing} ({fingerprint(key)})", flush=True)
    return problems


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


def _standing(path: Path, key: ec.EllipticCurvePublicKey, node: str, status: str) -> str:
    """Describe how a key stands that Flower knows; KeysError if it was unregistered."""
    if status == _GONE:
        raise _unregistered(path)
    if noted(path) != (node, fingerprint(key)):
        _note(path, node, key)  # registered from another machine, or by an earlier release
    now = "never online yet" if status == _NEVER else status
    return f"registered already as node {node}, {now}"


def _registered(control: Control, path: Path, key: ec.EllipticCurvePublicKey) -> str:
    """Register one site and say how it stands then."""
    node = control.register(key, path.name.removesuffix(SUFFIX))
    _note(path, node, key)
    return f"registered as node {node}"


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
