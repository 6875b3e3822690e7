"""A site's kit: one file with all that a site needs of its operator, none of it secret and none of it executed.

A kit is JSON: the site's name, the server's address, the texts of fixed ``entries``, and the authority's signature over
all of it. So it is as good as the authority's fingerprint, which the site's owner hears over another way and types:
what a kit says of itself proves nothing.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from common.code.release import VERSION
from common.sites import site_name, site_slug
from nectar.engines.flower.connection import is_address
from nectar.operate.keys.authority import (
    PUBLIC,
    KeysError,
    authority,
    make_directory,
    read,
    write_new,
)

FORMAT = 1

AUTHORITY, NODE_CONFIG, UNIT = "ca.crt", "node-config.toml", "nectar-site.service"

_TEXTS = Path(__file__).with_name("site_kit")
"""The folder of the other entries' texts, in which @THIS@ is replaced by a value; the site's own paths at the site."""

COMPOSE = "compose.yml"

_NAMES = (NODE_CONFIG, UNIT, COMPOSE)

#: where the site's folder is in a container of the image, as the compose file mounts it
_IN_IMAGE = Path("/site")

#: bytes of a kit
_MOST = 512 * 2**10

#: hex digits of the fingerprint that have to be typed: 128 bits, for which no second authority is found
_TYPED = 32

_HOW = ec.ECDSA(hashes.SHA384())


@dataclass(frozen=True)
class Kit:
    """A kit whose authority was proved.

    Attributes
    ----------
    server : str
        The address that the site connects to, HOST:PORT.
    entries : dict of str to str
        What the site gets, by name.
    made : str
        When the operator made it, a date, and with which release.
    """

    site: str
    server: str
    entries: dict[str, str]
    made: str

    def install(self, folder: Path, data: str, state: str) -> None:
        """Write what the kit holds to ``folder``; existing files of the same site and server stay, edited or not.

        The paths are those of the image or those of this machine: only one of the compose file and the unit works with
        them, and only that one is written.

        Raises
        ------
        KeysError
            If other things are there, or the folder cannot be written.
        """
        make_directory(folder)
        config = folder / NODE_CONFIG
        if config.exists() and _site_of(config) != self.site:
            raise KeysError(
                f"{folder} belongs to another site than {self.site!r}: choose another --folder"
            )
        paths = {"FOLDER": str(folder), "DATA": data, "STATE": state}
        paths["NECTAR"] = str(Path(sys.argv[0]).absolute())
        other = UNIT if folder == _IN_IMAGE else COMPOSE
        texts = {
            folder / name: _filled(name, text, paths).encode()
            for name, text in self.entries.items()
            if name != other
        }
        server = self.server.encode()
        for path in [path for path in texts if path.exists()]:
            known, text = read(path), texts[path]
            if path == config or known == text or (server in known and server in text):
                del texts[path]
        write_new({path: (text, PUBLIC) for path, text in texts.items()})


def make_kit(directory: Path, site: str, server: str, target: Path) -> x509.Certificate:
    """Write a site's kit, signed by the authority of a directory of keys, and return the authority's certificate.

    Raises
    ------
    FederationError
        If no site can be called so.
    KeysError
        If it is not an address, the authority is missing, or the file is there already or cannot be written.
    """
    name = site_name({"site": site})
    if not is_address(server):
        raise KeysError(f"{server!r:.80} is not an address: give HOST:PORT of the sites' proxy")
    key, certificate = authority(directory)
    values = {"SITE": name, "SLUG": site_slug(name), "SERVER": server}
    entries = {each: _filled(each, (_TEXTS / each).read_text("utf-8"), values) for each in _NAMES}
    entries[AUTHORITY] = read(directory / AUTHORITY).decode()
    kit: dict[str, Any] = {"format": FORMAT, "nectar": VERSION, "site": name, "server": server}
    kit["made"] = f"{datetime.now(UTC):%Y-%m-%d}"
    kit["entries"] = entries
    kit["signature"] = key.sign(_signed(kit), _HOW).hex()
    write_new({target: ((json.dumps(kit, indent=1) + "\n").encode(), PUBLIC)})
    return certificate


def fingerprint_groups(certificate: x509.Certificate) -> str:
    """Return what the operator reads out of an authority's fingerprint, and the site's owner types."""
    digits = certificate.fingerprint(hashes.SHA256()).hex()[:_TYPED].upper()
    return " ".join(re.findall("....", digits))


def open_kit(path: Path, site: str, typed: str) -> Kit:
    """Read a kit, once what was typed has proved its authority.

    Parameters
    ----------
    site : str
        The site's name, as its owner knows it.
    typed : str
        The authority's SHA-256, its first 32 hex digits at least, however they are grouped.

    Raises
    ------
    KeysError
        If it is not a kit, or was altered, or is of another authority, or another site's.
    """
    kit, certificate = _read(path)
    digits = re.sub(r"[\s:.-]", "", typed).lower()
    if not re.fullmatch(rf"[0-9a-f]{{{_TYPED},64}}", digits):
        raise KeysError(
            f"that is not a fingerprint: type its {_TYPED} digits and letters A to F, as read out by the operator"
        )
    if not certificate.fingerprint(hashes.SHA256()).hex().startswith(digits):
        raise KeysError(
            f"{path} is of another authority than the one with that fingerprint: ask the operator, over another way "
            "than the kit came, and use nothing of it"
        )
    try:
        key = certificate.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise InvalidSignature
        key.verify(bytes.fromhex(kit.pop("signature")), _signed(kit), _HOW)
    except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError):
        raise KeysError(
            f"{path} was altered after the operator made it: do not use it, and ask the operator for it again"
        ) from None
    if kit["format"] != FORMAT:
        raise KeysError(f"{path} is of Nectar {kit['nectar']}, and this is {VERSION}: install that")
    name = site_name({"site": site})
    if kit["site"] != name:
        raise KeysError(f"{path} is the kit of site {kit['site']!r}, and this is {name!r}")
    made = f"{kit.get('made', 'an unknown day')} by Nectar {kit['nectar']}"
    return Kit(name, kit["server"], kit["entries"], made)


def _read(path: Path) -> tuple[dict[str, Any], x509.Certificate]:
    """Return a kit of its fixed entries, not proved yet, and the authority's certificate in it."""
    if path.exists() and not (path.is_file() and path.stat().st_size <= _MOST):
        raise KeysError(f"{path} is not a kit: a kit is a file of at most {_MOST // 1024} kB")
    try:
        kit: dict[str, Any] = json.loads(read(path))
        (certificate,) = x509.load_pem_x509_certificates(kit["entries"][AUTHORITY].encode())
        texts = all(isinstance(text, str) for text in kit["entries"].values())
        if {*kit["entries"]} != {AUTHORITY, *_NAMES} or not texts or "signature" not in kit:
            raise ValueError(path)
    except (
        *(ValueError, LookupError, TypeError, AttributeError, RecursionError),
        *(x509.InvalidVersion, UnsupportedAlgorithm),
    ):
        raise KeysError(
            f"{path} is not a kit of `nectar keys kit`, or was altered: ask the operator for it again"
        ) from None
    return kit, certificate


def _signed(kit: Mapping[str, Any]) -> bytes:
    return json.dumps(dict(kit), sort_keys=True, separators=(",", ":")).encode()


def _site_of(config: Path) -> object:
    """Return the name of the site that a node config is of, however it is quoted; None if it says none."""
    try:
        return tomllib.loads(read(config).decode()).get("site")
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise KeysError(f"{config} cannot be read as TOML ({error}): mend it") from None


def _filled(name: str, text: str, values: Mapping[str, str]) -> str:
    """Return an entry's text with each @NAME@ that has a value replaced by it, quoted as the entry's form has it."""

    def value(found: re.Match[str]) -> str:
        return values.get(found[1], found[0])

    def toml(found: re.Match[str]) -> str:  # a basic string, which may hold any character
        return json.dumps(values[found[1]], ensure_ascii=False) if found[1] in values else found[0]

    def word(found: re.Match[str]) -> str:  # of systemd, quoted if it has blanks or its signs
        text = _NAME.sub(value, found[0])
        if text == found[0] or re.fullmatch(r"[\w./:@+=-]+", text):
            return text
        escaped = re.sub(r'([\\"])', r"\\\1", text).replace("%", "%%").replace("$", "$$")
        return f'"{escaped}"'

    if name == NODE_CONFIG:
        return re.sub("'@([A-Z]+)@'", toml, text)
    if name != UNIT:
        return _NAME.sub(value, text)
    lines = text.split("\n")
    return "\n".join(
        _NAME.sub(value, line) if line.startswith("#") else _WORD.sub(word, line) for line in lines
    )


_NAME, _WORD = re.compile("@([A-Z]+)@"), re.compile(r"(?<=[\s=])[^\s]*@[A-Z]+@[^\s]*")
