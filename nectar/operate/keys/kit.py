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

_HERE = ("@FOLDER@", "@DATA@", "@STATE@", "@NECTAR@")
"""What stands in an entry for places of the site's own, which it fills in."""

_NODE_CONFIG = """\
# What this site says of itself; docs/reference/node-config.md has all keys. Nobody else can set them.
site = '{site}'
data = '@DATA@'
state-dir = '@STATE@'
# device = 'cuda:0'
# cores = 4
# approve = 'ask'
# allow-methods = 'feddm fedavg'
# privacy-epsilon = 3
"""

_WORDS = (
    "--superlink {server} --root-certificates @FOLDER@/ca.crt "
    "--auth-supernode-private-key @FOLDER@/keys/nodes/{slug} --node-config @FOLDER@/node-config.toml"
)

_UNIT = f"""\
[Unit]
Description=Nectar site {{slug}}
After=network-online.target
Wants=network-online.target

[Service]
# A user of its own, who reads the images and @FOLDER@ and nothing else of value, and writes to @STATE@.
User=nectar
Environment=FLWR_HOME=@STATE@
ExecStart=@NECTAR@ site start {_WORDS}
Restart=on-failure
RestartSec=5
NoNewPrivileges=yes
PrivateTmp=yes

[Install]
WantedBy=multi-user.target
"""

_COMPOSE = f"""\
# The image comes by `docker load`; `nectar site init` ran in it with --folder /site --data /images
# --state /state/nectar.
# DATA=/abs/images and SITE_USER=UID:GID, who reads both, stand in .env.
services:
  site:
    image: nectar-fl
    command: nectar site start {_WORDS}
    user: "${{{{SITE_USER:?}}}}"
    environment: {{{{ FLWR_HOME: /state }}}}
    restart: on-failure
    read_only: true
    tmpfs: ["/tmp:mode=1777,size=512m"]
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    volumes: [".:/site:ro", "state:/state", "${{{{DATA:?}}}}:/images:ro"]
volumes:
  state:
"""


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
        nectar = str(Path(sys.argv[0]).absolute())
        here = dict(zip(_HERE, (str(folder), data, state, nectar), strict=True))
        entries = {folder / name: _filled(content, here) for name, content in self.entries.items()}
        owned = [folder / NODE_CONFIG]  # filled in by hand
        there = [p for p, c in entries.items() if p.exists() and (p in owned or read(p) == c)]
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
    values = {"site": name, "slug": site_slug(name), "server": server}
    texts = {NODE_CONFIG: _NODE_CONFIG, UNIT: _UNIT, COMPOSE: _COMPOSE}
    entries = {AUTHORITY: read(directory / AUTHORITY)}
    entries |= {entry: text.format(**values).encode() for entry, text in texts.items()}
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
    with _opened(path) as file:
        content = file.read(_MOST_IN_ALL + 1)
    if len(content) > _MOST_IN_ALL:
        raise KeysError(
            f"{path} has more than {_MOST_IN_ALL // 1024} kB, and no kit has: it is none"
        )
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


def _opened(path: Path) -> io.BufferedReader:
    try:
        if not path.is_file():  # a pipe would never open
            raise KeysError(f"there is no kit {path}")
        return path.open("rb")
    except OSError as error:
        raise KeysError(f"{path} cannot be read ({error.strerror})") from None


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


def _filled(content: bytes, here: dict[str, str]) -> bytes:
    text = content.decode()
    for name, value in here.items():
        text = text.replace(name, value)
    return text.encode()
