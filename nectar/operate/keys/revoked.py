"""Which keys were unregistered: a list beside the keys, which no backup holds and no restore shortens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from common.storage.files import write_text
from nectar.operate.keys.files import KeysError, read
from nectar.operate.keys.nodes import FOLDER

LIST = "revoked.txt"
"""The list's name in a directory of keys."""

_UNKNOWN = "-"

_HEAD = """\
# Keys that were unregistered: node, fingerprint, site, day (UTC). `nectar keys register` refuses them, and
# `nectar restore` unregisters them again. Keep a copy elsewhere: a backup does not hold this list.
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
        """Whether a key of this fingerprint, registered as this node, is meant."""
        return node == self.node != "" or fingerprint == self.fingerprint != ""


def list_for(public_file: Path) -> Path:
    """Return the list of the directory of keys in which a public half lies."""
    above = public_file.parent
    return (above.parent if above.name == FOLDER else above) / LIST


def revoked(path: Path) -> list[Revoked]:
    """Return what is on the list; nothing where there is none.

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
