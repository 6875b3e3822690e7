"""A site's kit: one file with all that a site needs of its operator, none of it secret and none of it executed.

A kit is a tar file of fixed entries. ``kit.json`` has a sum of each other one, and ``kit.sig`` is the authority's
signature over it. So a kit is as good as the authority's fingerprint, which the site's owner hears over another way
and types: what a kit says of itself proves nothing.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
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

ABOUT, SIGNATURE, AUTHORITY = "kit.json", "kit.sig", "ca.crt"
NODE_CONFIG, UNIT, COMPOSE = "node-config.toml", "nectar-site.service", "compose.yml"

FORMAT = 1

_SIGNED = (AUTHORITY, NODE_CONFIG, UNIT, COMPOSE)

#: bytes of an entry, and of a kit
_MOST, _MOST_IN_ALL = 64 * 2**10, 512 * 2**10

#: hex digits of the fingerprint that have to be typed: 128 bits, which nobody finds a second authority for
_TYPED = 32

_TEXTS = Path(__file__).with_name("site_kit")
"""Where the entries' texts lie; what stands in them as @THIS@ is filled in, of places of the site's own at the site."""


@dataclass(frozen=True)
class Kit:
    """A kit whose authority was proved.

    Attributes
    ----------
    site : str
        For whom it was made.
    server : str
        The address that the site connects to, HOST:PORT.
    entries : dict of str to bytes
        What the site gets, by name.
    """

    site: str
    server: str
    entries: dict[str, bytes]

    def install(self, folder: Path, data: str, state: str) -> None:
        """Write what the kit holds to ``folder``; what is there as it would be stays, other things are not replaced."""
        make_directory(folder)
        here = {"FOLDER": str(folder), "DATA": data, "STATE": state}
        here["NECTAR"] = str(Path(sys.argv[0]).absolute())
        entries = {folder / name: _filled(text, here) for name, text in self.entries.items()}
        filled_in_by_hand = folder / NODE_CONFIG
        there = {
            p for p, c in entries.items() if p.exists() and (p == filled_in_by_hand or read(p) == c)
        }
        write_new({path: (c, PUBLIC) for path, c in entries.items() if path not in there})


def make_kit(directory: Path, site: str, server: str, target: Path) -> x509.Certificate:
    """Write a site's kit, signed by the authority of a directory of keys, and return the authority's certificate.

    Raises
    ------
    FederationError
        If no site can be called so.
    KeysError
        If the address is none, the authority is missing, or the file is there already or cannot be written.
    """
    name = site_name({"site": site})
    if not is_address(server):
        raise KeysError(f"{server!r:.80} is not an address: give HOST:PORT of the sites' proxy")
    key, certificate = authority(directory)
    values = {"SITE": name, "SLUG": site_slug(name), "SERVER": server}
    entries = {AUTHORITY: read(directory / AUTHORITY)}
    entries |= {text: _filled((_TEXTS / text).read_bytes(), values) for text in _SIGNED[1:]}
    about = {
        "format": FORMAT,
        "nectar": VERSION,
        "site": name,
        "server": server,
        "sha256": {
            entry: hashlib.sha256(content).hexdigest() for entry, content in entries.items()
        },
    }
    stated = json.dumps(about, indent=2).encode()
    signature = key.sign(stated, ec.ECDSA(hashes.SHA384()))
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for entry, content in {ABOUT: stated, SIGNATURE: signature, **entries}.items():
            head = tarfile.TarInfo(entry)
            head.size, head.mode = len(content), PUBLIC
            archive.addfile(head, io.BytesIO(content))
    write_new({target: (out.getvalue(), PUBLIC)})
    return certificate


def spoken(certificate: x509.Certificate) -> str:
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
    entries = _entries(path)
    certificate = _certificate(path, entries[AUTHORITY])
    digits = re.sub(r"[\s:.-]", "", typed).lower()
    if not re.fullmatch(rf"[0-9a-f]{{{_TYPED},64}}", digits):
        raise KeysError(
            f"that is not a fingerprint: type its {_TYPED} digits and letters A to F, as the operator reads them out"
        )
    if not certificate.fingerprint(hashes.SHA256()).hex().startswith(digits):
        raise KeysError(
            f"{path} is of another authority than the one with that fingerprint: ask the operator, over another way "
            "than the kit came, and use nothing of it"
        )
    about = _about(path, entries, certificate)
    name = site_name({"site": site})
    if about["site"] != name:
        raise KeysError(f"{path} is the kit of the site {about['site']!r}, and this is {name!r}")
    return Kit(name, about["server"], {entry: entries[entry] for entry in _SIGNED})


def _entries(path: Path) -> dict[str, bytes]:
    """Return what is in a kit, each of its fixed entries once; KeysError if that is not so."""
    none = KeysError(
        f"{path} is not a kit of `nectar keys kit`, or was altered: ask the operator for it again"
    )
    if path.exists() and not (path.is_file() and path.stat().st_size <= _MOST_IN_ALL):
        raise KeysError(f"{path} is no file of at most {_MOST_IN_ALL // 1024} kB, and every kit is")
    content = read(path)
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            for entry in archive:
                plain = entry.isreg() and not entry.issparse() and entry.size <= _MOST
                if (
                    not plain
                    or entry.name in found
                    or entry.name not in (ABOUT, SIGNATURE, *_SIGNED)
                ):
                    raise none
                held = archive.extractfile(entry)
                found[entry.name] = held.read() if held else b""
    except (tarfile.TarError, EOFError, ValueError, ArithmeticError, RecursionError):
        raise none from None
    if len(found) < len(_SIGNED) + 2:
        raise none
    return found


def _certificate(path: Path, content: bytes) -> x509.Certificate:
    try:
        (certificate,) = x509.load_pem_x509_certificates(content)
    except ValueError:
        raise KeysError(f"{path} does not hold one authority's certificate") from None
    return certificate


def _about(path: Path, entries: dict[str, bytes], certificate: x509.Certificate) -> dict[str, Any]:
    altered = KeysError(
        f"{path} was altered after the operator made it: use nothing of it, and ask the operator for it again"
    )
    key = certificate.public_key()
    try:
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise altered
        key.verify(entries[SIGNATURE], entries[ABOUT], ec.ECDSA(hashes.SHA384()))
        about: dict[str, Any] = json.loads(entries[ABOUT])
        sums = {entry: hashlib.sha256(entries[entry]).hexdigest() for entry in _SIGNED}
        if about["sha256"] != sums:
            raise altered
        if about["format"] != FORMAT:
            raise KeysError(
                f"{path} was made by Nectar {about['nectar']}, and this is {VERSION}: install that release"
            )
        return about
    except (InvalidSignature, ValueError, KeyError, TypeError):
        raise altered from None


def _filled(text: bytes, values: Mapping[str, str]) -> bytes:
    for name, value in values.items():
        text = text.replace(f"@{name}@".encode(), value.encode())
    return text
