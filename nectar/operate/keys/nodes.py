"""The key pair of a site's SuperNode: the site keeps one half, the server registers the other."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from common.sites import site_name, site_slug
from nectar.operate.keys.files import (
    PRIVATE,
    PUBLIC,
    KeysError,
    make_directory,
    read,
    refuse_existing,
    write_new,
)

FOLDER = "nodes"
"""The folder of a directory of keys in which the sites' lie."""

SUFFIX = ".pub"

_NOTE = ".node-id"

_CURVES = ("secp256r1", "secp384r1", "secp521r1")


def make_nodes(directory: Path, sites: Sequence[str]) -> list[Path]:
    """Write a pair a site, ``nodes/SITE`` and ``nodes/SITE.pub`` by its slug, in OpenSSH's forms; return the latter.

    A pair takes nothing from the authority, so a site can make its own and send the public half alone.

    Raises
    ------
    FederationError
        If a name is none that a site may have.
    KeysError
        If a file is there already or cannot be written.
    """
    folder = directory / FOLDER
    names = list(dict.fromkeys(_checked(site) for site in sites))
    private, public = [folder / name for name in names], [folder / (n + SUFFIX) for n in names]
    refuse_existing(*private, *public)
    make_directory(directory)
    make_directory(folder)
    contents = {}
    for key_file, public_file in zip(private, public, strict=True):
        key = ec.generate_private_key(ec.SECP384R1())
        contents[key_file] = (_openssh(key), PRIVATE)
        contents[public_file] = (_public_line(key.public_key(), key_file.name), PUBLIC)
    write_new(contents)
    return public


def read_public(path: Path) -> ec.EllipticCurvePublicKey:
    """Return the public half in an OpenSSH file; KeysError if it holds another thing, naming a private key so."""
    content = read(path)
    if b"PRIVATE KEY" in content:
        raise KeysError(
            f"{path} is a private key, which stays at the site: give the file that ends in {SUFFIX}"
        )
    try:
        key = serialization.load_ssh_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        raise KeysError(f"{path} is not a public key of OpenSSH's form") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in _CURVES:
        raise KeysError(
            f"{path} is of a kind that Flower does not take: make the pair with `nectar keys node`"
        )
    return key


def read_private(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the site's own half; KeysError if it is none, or has a passphrase, which a SuperNode could not ask for."""
    try:
        key = serialization.load_ssh_private_key(read(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise KeysError(
            f"{path} is not a private key of OpenSSH's form without a passphrase"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise KeysError(
            f"{path} is of a kind that Flower does not take: make the pair with `nectar keys node`"
        )
    return key


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """Return a public key's fingerprint as ``ssh-keygen -l`` prints it."""
    line = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def public_halves(directory: Path) -> list[Path]:
    """Return the sites' public halves of a directory of keys, or of a folder of such files as they came by mail."""
    for folder in (directory / FOLDER, directory):
        if found := sorted(folder.glob(f"*{SUFFIX}")):
            return found
    return []


def note_of(public_file: Path) -> Path:
    """Return the file beside a public half in which its node id stands once it is registered."""
    return public_file.with_name(public_file.name + _NOTE)


def noted(public_file: Path) -> tuple[str, str]:
    """Return what stands in a public half's note: the node's number and the fingerprint of the key; empty if nothing.

    Notes of earlier releases have the number alone.
    """
    try:
        node, _, of = note_of(public_file).read_text(encoding="utf-8").strip().partition(" ")
    except (OSError, UnicodeDecodeError):
        return "", ""
    return (node, of) if node.isdecimal() else ("", "")


def noted_sites(directory: Path) -> dict[str, str]:
    """Return the registered sites of a directory of keys: from the node's number to the site's name."""
    found = ((noted(path)[0], path.name.removesuffix(SUFFIX)) for path in public_halves(directory))
    return {node: site for node, site in found if node}


def is_note(path: Path) -> bool:
    """Whether a file is such a note."""
    return path.name.endswith(_NOTE)


def _checked(site: str) -> str:
    name = site_slug(site_name({"site": site}))
    if name.endswith((SUFFIX, _NOTE)):
        raise KeysError(
            f"the site name {name!r} ends as a file of keys does ({SUFFIX}, {_NOTE}): choose another"
        )
    return name


def _openssh(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )


def _public_line(key: ec.EllipticCurvePublicKey, site: str) -> bytes:
    line = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return line + b" " + site.encode() + b"\n"
